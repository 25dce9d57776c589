"""The application `topics`: settings, question and results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import orjson
from pydantic import Field

from forebay.apps.base import ApplicationSettings, Page, PipelineView, Preset
from forebay.apps.page import readable
from forebay.apps.samples import pick
from forebay.apps.topics.values import (
    MAX_LABEL_CHARS,
    Assignment,
    ShardEvent,
    TopicSettings,
    phrase_of,
    topic_name,
)
from forebay.engine.prompt import PromptTemplate
from forebay.fields import FieldPath, PositiveFloat, PositiveInt, Switch
from forebay.flink.shards import MAX_PARALLELISM
from forebay.records import JSON, Event, Message, Result, Usage
from forebay.untrusted_text import RULE, quoted_posts

if TYPE_CHECKING:
    from pyflink.datastream import DataStream

    from forebay.apps.graph import InferenceOptions
    from forebay.flink.infer import InferenceStreams

Embeddings = Literal["minilm", "words"]
ASKED = ("born", "moved")
SHOWN_TEXTS = 4
SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "minLength": 1, "maxLength": MAX_LABEL_CHARS},
        "about": {"type": "string", "minLength": 1, "maxLength": 160},
    },
    "required": ["label", "about"],
    "additionalProperties": False,
}
PROMPT = PromptTemplate(
    messages=(
        Message(
            "system",
            "You name the topic that posts have in common: a label of at most five words, and one short line "
            'on what it is about. Answer as JSON: {"label": "…", "about": "…"}. ' + RULE,
        ),
        Message("user", "{{ event.question }}"),
    ),
    # The question contains its own markup; quoted text inside it is escaped.
    escape=False,
)


def to_result(found: ShardEvent) -> Result:
    """Convert a topic event to a result with a readable time.

    If the texts have no times, that is None, and `time_ms` counts one second per text.
    """
    event = found.event
    time = readable(event.time_ms) if found.timed else None
    values = asdict(event)
    values["topic"] = found.name
    values["into"] = None if event.into is None else topic_name(found.shard, event.into)
    values["texts"] = pick(event.texts, SHOWN_TEXTS)
    answer = {"kind": event.kind, "topic": found.name, "time": time, **values}
    return _result(_id(found), found.name, {"topic": found.name}, answer, event.time_ms)


def assigned(text: Assignment) -> Result:
    answer = {"topic": text.topic, "confidence": round(text.confidence, 3)}
    return _result(text.id, text.topic or "", {}, answer, text.time_ms)


def _result(id: str, key: str, fields: dict[str, JSON], answer: JSON, time_ms: int | None) -> Result:
    return Result(
        id=id, key=key, fields=fields, answer=answer, usage=Usage(), attempts=0, read_ms=0, elapsed_s=0.0,
        called_s=0.0, time_ms=time_ms,
    )  # fmt: skip


def to_prompt_event(found: ShardEvent) -> Event | None:
    event = found.event
    if event.kind not in ASKED:
        return None
    texts = pick(event.texts, SHOWN_TEXTS)
    asked: dict[str, JSON] = {
        "kind": event.kind,
        "topic": found.name,
        "timed": found.timed,
        "phrase": phrase_of(texts),
        "question": f"{quoted_posts(texts)}\nWhich topic do these posts have in common?",
    }
    return Event(orjson.dumps(asked), asked, event.time_ms, _id(found))


def labelled(answered: Result) -> Result:
    """If the model's label has no letter or digit, a phrase of the texts replaces it."""
    about = answered.fields
    label = answered.answer["label"].strip()
    answer = {
        "kind": "label",
        "topic": about["topic"],
        "time": readable(answered.time_ms) if about["timed"] and answered.time_ms is not None else None,
        "of": about["kind"],
        "label": label if any(map(str.isalnum, label)) else about["phrase"] or f"topic {about['topic']}",
        "about": answered.answer["about"],
        "time_ms": answered.time_ms,
    }
    return replace(answered, id=f"{answered.id}-label", fields={"topic": about["topic"]}, answer=answer)


def _id(found: ShardEvent) -> str:
    event = found.event
    return f"topic-{found.name}-{event.kind}-{event.size}-{event.time_ms}"


CLUSTERS = TopicSettings()


class TopicsSpec(ApplicationSettings):
    """Detect which topics emerge, and label them."""

    own_clock: ClassVar[bool] = True
    assigns: ClassVar[bool] = True
    bound: ClassVar[frozenset[str] | None] = frozenset(("embeddings", "topic_shards", "labels"))
    preset: ClassVar[Preset] = Preset({"timeout_s": 120.0})

    type: Literal["topics"] = "topics"
    text: FieldPath = Field("text", description="Field with the text; dots for nesting.")
    embeddings: Embeddings = Field(
        "minilm",
        description="`minilm`: the model of `forebay setup --embeddings`; `words`: no model, texts are "
        "compared by their words.",
    )
    threads: PositiveInt = Field(2, description="Threads for the embedding model.")
    wait_s: PositiveFloat = Field(1.0, description="Maximum time a text waits for its batch of 64 to fill.")
    topic_shards: PositiveInt = Field(
        1,
        le=MAX_PARALLELISM,
        description="Number of shards, by the hash of `key`. Each has its own topics; shards run in "
        "parallel.",
    )
    labels: Switch = Field(True, description="Ask the model for a label of each topic.")
    birth_texts: PositiveInt = Field(CLUSTERS.birth_texts, description="Minimum number of texts in a topic.")
    idle_s: PositiveFloat = Field(
        CLUSTERS.idle_s, description="End a topic after this long without a new text."
    )

    @property
    def text_field(self) -> str:
        return self.text

    @property
    def state_by_key(self) -> bool:
        return self.topic_shards > 1

    @property
    def find(self) -> TopicSettings:
        return TopicSettings(birth_texts=self.birth_texts, idle_s=self.idle_s)

    @property
    def asks_model(self) -> bool:
        return self.labels

    def problems(self, pipeline: PipelineView) -> Iterator[tuple[str, str]]:
        yield from super().problems(pipeline)
        if self.topic_shards > 1 and not pipeline.key:
            yield "key", "expected a template with application.topic_shards above 1, found none"

    def finding_shards(self, shards: int) -> int:
        return self.topic_shards

    def build(self, records: DataStream, options: InferenceOptions) -> InferenceStreams:
        from forebay.apps.topics.graph import topics

        return topics(self, records, options)

    def news(self, answer: Any) -> str | None:
        match answer["kind"]:
            case "label" if answer["of"] == "born":
                return f"topic {answer['label']}: {answer['about']}"
            case "born" if not self.labels:
                return f"topic {phrase_of(answer['texts']) or answer['topic']}"
        return None

    def top(self, lines: Iterable[bytes]) -> list[str]:
        from forebay.apps.topics.page import top_topics

        return top_topics(lines)

    def page(self) -> Page | None:
        from forebay.apps.topics.page import topics_page

        return topics_page
