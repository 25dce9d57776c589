"""What an application is: settings of a pipeline file, what they need of it, and what they put into a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import Field

from forebay.documents.fields import Model
from forebay.engine.context import ContextNeed, answer_need

if TYPE_CHECKING:
    from pyflink.datastream import DataStream

    from forebay.apps.graph import InferenceOptions
    from forebay.flink.infer import InferenceStreams

Page = Callable[[Iterable[bytes]], str]
"""Makes a self-contained HTML page of the JSON lines of an application's results, and then of its dead
letters."""


FAILURES = "failures"
"""The field of an application's answer with the failed calls that it went on without: how many, by cause."""


class PipelineView(Protocol):
    """What an application sees of the pipeline around it."""

    @property
    def key(self) -> str | None: ...

    @property
    def event_time(self) -> object | None:
        """None where the pipeline has no event time."""
        ...

    @property
    def source(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Preset:
    """A pipeline's settings for `forebay run NAME`, but for its source and its sink."""

    document: Mapping[str, Any] = field(default_factory=dict)


class ApplicationSettings(Model):
    """A stateful application in place of one question per event."""

    type: str = Field(description="Name of the application.")
    needs_key: ClassVar[bool] = False
    """It keeps something for each key."""
    needs_event_time: ClassVar[bool] = False
    own_clock: ClassVar[bool] = False
    """It finds by itself what to ask about, and has a clock of its own."""
    bound: ClassVar[frozenset[str] | None] = None
    """The keys that a checkpoint is bound to: it cannot be resumed with other values. None: all of them."""
    preset: ClassVar[Preset] = Preset()

    @property
    def asks_model(self) -> bool:
        """Whether an engine is needed at all."""
        return True

    @property
    def text_field(self) -> str | None:
        """The field that it cannot do without, dots for nesting; None where there is none such."""
        return None

    def problems(self, pipeline: PipelineView) -> Iterator[tuple[str, str]]:
        """What of it does not fit the pipeline: paths of keys, and what is wrong there."""
        if self.needs_key and pipeline.key is None:
            yield "key", f"expected a template with application {self.type}, found none"
        if self.needs_event_time and pipeline.event_time is None:
            yield "event_time", f"expected a mapping with application {self.type}, found none"

    def context_need(self, max_tokens: int) -> ContextNeed:
        """The context that its largest call takes, with `sampling.max_tokens` of the pipeline."""
        return answer_need(max_tokens)

    def finding_shards(self, shards: int) -> int:
        """With a clock of its own: how many shards it finds in, in a pipeline with so many."""
        return shards

    def build(self, records: DataStream, options: InferenceOptions) -> InferenceStreams:
        """The application over the encoded records, with the pipeline's inference."""
        raise NotImplementedError

    @classmethod
    def page(cls) -> Page | None:
        """What makes a page of the results at the end of `forebay run NAME`; None: nothing does."""
        return None

    def fingerprint(self) -> dict[str, Any]:
        """What of it a checkpoint is bound to, as JSON values."""
        values = self.model_dump(mode="json", by_alias=True)
        return {name: values[name] for name in values if self.bound is None or name in self.bound}
