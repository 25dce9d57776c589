"""What a pipeline passes to its application."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyflink.datastream import MapFunction, RuntimeContext

from forebay.clock import SystemClock
from forebay.codec import decode, encode
from forebay.engine.prompt import PromptTemplate
from forebay.engine.replica import ContextNeed
from forebay.flink.event_time import Clocked
from forebay.flink.infer import InferenceStreams, infer, infer_stateful
from forebay.flink.keying import EventText
from forebay.flink.metric_names import FINDINGS, GROUP
from forebay.flink.metrics import LabelledCounter
from forebay.flink.request_handler import InferenceSpec
from forebay.flink.stages import payload
from forebay.flink.types import BYTES
from forebay.records import JSON, Event, Result, Timeline
from forebay.stateful.program import Program

if TYPE_CHECKING:
    from pyflink.datastream import DataStream


@dataclass(frozen=True)
class InferenceOptions:
    call: InferenceSpec
    key: EventText | None = None
    id: EventText | None = None
    capacity: int = 64
    shards: int = 8
    event_time: bool = False
    timeline: bool = False
    parallelism: int | None = None
    name: str = "infer"


class ProgramSettings(Protocol):
    """An application that is a stateful program.

    `max_state_bytes` limits the state of one key. `finding` returns the kind of an answer, by which results
    are counted.
    """

    @property
    def max_state_bytes(self) -> int: ...

    def context_need(self, max_tokens: int) -> ContextNeed: ...

    def program(self, *, event_time: bool) -> Program[Any]: ...

    def finding(self, answer: Any) -> str: ...


def stateful(settings: ProgramSettings, stream: DataStream, parts: InferenceOptions) -> InferenceStreams:
    """Run the program of `settings` on `stream`. Raises `SettingError` if the pipeline has no key."""
    program = settings.program(event_time=parts.event_time)
    return infer_stateful(
        stream, program, max_state_bytes=settings.max_state_bytes, finding=settings.finding, **vars(parts)
    )


class CountKinds(MapFunction):
    def __init__(self, to_result: Callable[[bytes], Result]) -> None:
        self._to_result = to_result

    def open(self, runtime_context: RuntimeContext) -> None:
        group = runtime_context.get_metrics_group().add_group(GROUP)
        self._counter = LabelledCounter(group, FINDINGS)

    def map(self, value: bytes) -> bytes:
        result = self._to_result(value)
        self._counter.count(result.answer["kind"])
        return encode(result)


Found = TypeVar("Found")


def with_answers(
    found: Clocked,
    parts: InferenceOptions,
    *,
    read: Callable[[bytes], Found],
    to_result: Callable[[Found], Result],
    question: Callable[[Found], Event | None],
    key: EventText,
    answered: Callable[[Result], Result],
    asks: bool,
    prompt: PromptTemplate | None = None,
    schema: Mapping[str, JSON] | None = None,
    program: Program[Any] | None = None,
) -> InferenceStreams:
    """Turn detector messages into results, and add the model's answers if `asks` is set.

    `read` decodes each message's payload, `to_result` makes its result, and `question` the event for the
    model, with `prompt` and `schema` or by a `program`. With a timeline, a result is read and emitted when it
    was found, and a question is read when it is sent. Dead letters are refused records and failed questions.
    """

    def questions(value: bytes) -> Iterator[bytes]:
        asked = question(read(payload(value)))
        if asked is not None:
            yield encode(asked)

    def event_of(value: bytes) -> Result:
        result = to_result(read(payload(value)))
        if not parts.timeline:
            return result
        now_us = SystemClock().wall_us()
        return replace(result, timeline=Timeline(now_us, left_us=now_us))

    events = found.messages.map(CountKinds(event_of), BYTES)
    events.name("events").set_parallelism(1)
    if not asks:
        return InferenceStreams(events, found.refused)
    asked = found.messages.flat_map(questions, BYTES).name("questions").set_parallelism(1)
    options: dict[str, Any] = {
        name: getattr(parts, name) for name in ("capacity", "shards", "timeline", "parallelism", "name")
    }
    if program is not None:
        inferred = infer_stateful(asked, program, parts.call, key=key, **options)
    else:
        inferred = infer(asked, replace(parts.call, prompt=prompt, schema=schema), key=key, **options)
    answers = inferred.results.map(CountKinds(lambda data: answered(decode(bytes(data)))), BYTES)
    answers.name("answers")
    return InferenceStreams(events.union(answers), found.refused.union(inferred.dead_letters))
