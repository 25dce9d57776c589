"""The application `trends`: settings, question and results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field, Strict

from forebay.apps.base import ApplicationSettings, Page, PipelineView, Preset
from forebay.apps.page import readable
from forebay.apps.trends.values import TrendEvent, TrendSettings
from forebay.connectors.files.settings import FileSource
from forebay.fields import FieldPath, NotNegativeFloat, PositiveFloat, Switch
from forebay.records import JSON, Event, Result, Usage
from forebay.stateful.stream_time import Tolerance
from forebay.untrusted_text import quoted_posts, quoted_words

if TYPE_CHECKING:
    from pyflink.datastream import DataStream

    from forebay.apps.graph import InferenceOptions
    from forebay.flink.infer import InferenceStreams

ASKED = ("born", "returned", "changed")


@dataclass(frozen=True, slots=True)
class Trends:
    """Refuses posts more than `late_s` behind the stream's clock or `ahead_s` ahead of their partition's."""

    text: str = "text"
    late_s: float = 5.0
    ahead_s: float = 3600.0
    labels: bool = True
    find: TrendSettings = field(default_factory=TrendSettings)

    @property
    def tolerance(self) -> Tolerance:
        return Tolerance(round(self.late_s * 1000), round(self.ahead_s * 1000))


def to_result(event: TrendEvent) -> Result:
    values = asdict(event)
    del values["posts"]
    answer = {
        "kind": event.kind,
        "trend": event.trend,
        "time": readable(event.time_ms),
        "onset": readable(event.onset_ms),
        "peak": readable(event.peak_ms),
        **values,
    }
    return _result(_id(event), event.trend, answer, event.time_ms)


def to_prompt_event(event: TrendEvent) -> Event | None:
    if event.kind not in ASKED:
        return None
    words, posts = quoted_words(event.terms[:8]), quoted_posts(event.texts)
    asked: dict[str, JSON] = {
        "kind": event.kind,
        "trend": event.trend,
        "name": event.name,
        "terms": list(event.terms[:8]),
        "texts": list(event.texts),
        "question": f"Talked about:\n{words}\n{posts}\nWhy, in one line?",
    }
    return Event(orjson.dumps(asked), asked, event.time_ms, _id(event))


def why(answered: Result) -> Result:
    about = answered.fields
    answer = {
        "kind": "why",
        "trend": about["trend"],
        "time": None if answered.time_ms is None else readable(answered.time_ms),
        "of": about["kind"],
        "name": about["name"],
        "why": answered.answer["why"],
        "time_ms": answered.time_ms,
    }
    return replace(answered, id=f"{answered.id}-why", fields={"trend": about["trend"]}, answer=answer)


def _id(event: TrendEvent) -> str:
    return f"trend-{event.trend}-{event.kind}-{event.time_ms}"


def _result(id: str, trend: int, answer: JSON, time_ms: int) -> Result:
    return Result(
        id=id, key=str(trend), fields={"trend": trend}, answer=answer, usage=Usage(), attempts=0, read_ms=0,
        elapsed_s=0.0, called_s=0.0, time_ms=time_ms,
    )  # fmt: skip


TRENDS, FIND = Trends(), TrendSettings()


class TrendsSpec(ApplicationSettings):
    """Detect what is going viral, and ask why. Needs a source with times."""

    needs_times_of_files: ClassVar[bool] = True
    own_clock: ClassVar[bool] = True
    bound: ClassVar[frozenset[str] | None] = frozenset(("labels",))
    preset: ClassVar[Preset] = Preset({"timeout_s": 120.0})

    type: Literal["trends"]
    text: FieldPath = Field(TRENDS.text, description="Field with the post's text; dots for nesting.")
    late_s: NotNegativeFloat = Field(
        TRENDS.late_s,
        description="A post further behind the stream's clock becomes a dead letter (`late`). Above 5, ticks "
        "wait for late posts.",
    )
    ahead_s: NotNegativeFloat = Field(
        TRENDS.ahead_s,
        description="A post further ahead of its partition's clock becomes a dead letter (`ahead`).",
    )
    labels: Switch = Field(TRENDS.labels, description="Ask the model why each trend rises.")
    least_nats: PositiveFloat = Field(FIND.least_nats, description="Minimum evidence for a trend, in nats.")
    least_ratio: Annotated[float, Strict(), Field(ge=1)] = Field(
        FIND.least_ratio, description="Minimum ratio of a term's share of the posts to its earlier share."
    )
    least_posts: PositiveFloat = Field(
        FIND.least_posts, description="Minimum decayed number of posts with the term."
    )

    @property
    def text_field(self) -> str:
        return self.text

    def settings(self) -> Trends:
        find = TrendSettings(
            least_nats=self.least_nats, least_ratio=self.least_ratio, least_posts=self.least_posts
        )
        return Trends(self.text, self.late_s, self.ahead_s, self.labels, find)

    @property
    def asks_model(self) -> bool:
        return self.labels

    def problems(self, pipeline: PipelineView) -> Iterator[tuple[str, str]]:
        yield from super().problems(pipeline)
        if isinstance(pipeline.source, FileSource) and pipeline.source.time is None:
            yield "source.time", "expected the field with the time with application trends, found none"

    def build(self, records: DataStream, options: InferenceOptions) -> InferenceStreams:
        from forebay.apps.trends.graph import trends

        return trends(self.settings(), records, options)

    def news(self, answer: Any) -> str | None:
        match answer["kind"]:
            case "born" | "returned":
                rates = f"{answer['rate_per_s']:.2f} posts/s, {answer['base_per_s']:.2f} before"
                example = "".join(f": {text}" for text in answer["texts"][:1])
                again = " is back" if answer["kind"] == "returned" else ""
                return f"trend {answer['name']}{again} ({rates}){example}"
            case "why" if answer["of"] == "born":
                return f"trend {answer['name']}: {answer['why']}"
        return None

    def top(self, lines: Iterable[bytes]) -> list[str]:
        from forebay.apps.trends.page import top_trends

        return top_trends(lines)

    def page(self) -> Page | None:
        from forebay.apps.trends.page import trends_page

        return trends_page
