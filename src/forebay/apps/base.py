"""The base class of applications."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import Field

from forebay.engine.replica import ContextNeed, answer_need
from forebay.fields import Model

if TYPE_CHECKING:
    from pyflink.datastream import DataStream

    from forebay.apps.graph import InferenceOptions
    from forebay.flink.infer import InferenceStreams

Page = Callable[[Iterable[bytes]], str]
"""Makes an HTML page from JSON lines: an application's results, then its dead letters."""


FAILURES = "failures"
"""Field of an answer that counts failed calls by cause, if the application continued without them."""


class PipelineView(Protocol):
    @property
    def key(self) -> str | None: ...

    @property
    def event_time(self) -> object | None: ...

    @property
    def source(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings of the pipeline behind `forebay run NAME`, without source and sink."""

    document: Mapping[str, Any] = field(default_factory=dict)


class ApplicationSettings(Model):
    """A stateful application, used instead of one prompt per event."""

    type: str = Field(description="Name of the application.")
    needs_key: ClassVar[bool] = False
    needs_event_time: ClassVar[bool] = False
    needs_times_of_files: ClassVar[bool] = False
    own_clock: ClassVar[bool] = False
    """Whether it decides itself what to send to the model, using its own clock."""
    assigns: ClassVar[bool] = False
    """Whether it has a second output, `assignments`, with a result for each event."""
    bound: ClassVar[frozenset[str] | None] = None
    """Settings that must not change when a job resumes from a checkpoint. None: all of them."""
    preset: ClassVar[Preset] = Preset()

    @property
    def state_by_key(self) -> bool:
        """Whether another `key` of the pipeline would not find the state."""
        return self.needs_key

    @property
    def asks_model(self) -> bool:
        return True

    @property
    def text_field(self) -> str | None:
        return None

    def problems(self, pipeline: PipelineView) -> Iterator[tuple[str, str]]:
        """Yields (path of a key, message) for settings that do not fit the pipeline."""
        if self.needs_key and pipeline.key is None:
            yield "key", f"expected a template with application {self.type}, found none"
        if self.needs_event_time and pipeline.event_time is None:
            yield "event_time", f"expected a mapping with application {self.type}, found none"

    def context_need(self, max_tokens: int) -> ContextNeed:
        return answer_need(max_tokens)

    def finding_shards(self, shards: int) -> int:
        return shards

    def build(self, records: DataStream, options: InferenceOptions) -> InferenceStreams:
        raise NotImplementedError

    def finding(self, answer: Any) -> str:
        return "result"

    def page(self) -> Page | None:
        """Makes the page of results for `forebay run NAME`, or None."""
        return None

    def news(self, answer: Any) -> str | None:
        """One line for the terminal about a committed result's answer; None if it is not worth one."""
        return None

    def top(self, lines: Iterable[bytes]) -> list[str]:
        """One line for each important result at the end of a run, from the JSON lines of `page`, in order."""
        return []

    def fingerprint(self) -> dict[str, Any]:
        values = self.model_dump(mode="json", by_alias=True)
        return {name: values[name] for name in values if self.bound is None or name in self.bound}
