"""`infer` over streams of objects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyflink.datastream import DataStream

from forebay.api.events import ReadEvent, TextOf, ToEvent, text_of
from forebay.api.inference import Inference
from forebay.api.models import AnswerModel
from forebay.api.objects import ObjectStream
from forebay.codec import decode
from forebay.errors import SettingError
from forebay.flink import infer as flink_infer
from forebay.flink.infer import DEFAULT_SHARDS
from forebay.flink.ordering import Ordering
from forebay.records import DeadLetter, Result


@dataclass(frozen=True)
class Outputs:
    """What an operator gives: results, and dead letters for the records that were given up."""

    results: ObjectStream[Result]
    dead_letters: ObjectStream[DeadLetter]


def infer(
    stream: DataStream,
    inference: Inference,
    *,
    to_event: ToEvent | None = None,
    key: TextOf | None = None,
    id: TextOf | None = None,
    ordering: Ordering = "unordered",
    shards: int = DEFAULT_SHARDS,
    event_time: bool = False,
    parallelism: int | None = None,
    name: str = "infer",
) -> Outputs:
    """Ask the model about every element of `stream`."""
    spec = inference.spec(inference.model or "")
    if spec.prompt is None:
        raise SettingError("the Inference needs a prompt or messages")
    encoded, read = source_of(stream, to_event)
    given = flink_infer.infer(
        encoded,
        spec,
        to_event=read,
        key=text_of(key, "key"),
        id=text_of(id, "id"),
        capacity=inference.capacity,
        ordering=ordering,
        shards=shards,
        event_time=event_time,
        parallelism=parallelism,
        name=name,
    )
    return outputs(given, inference.answer_model())


def source_of(stream: Any, to_event: ToEvent | None) -> tuple[DataStream, ReadEvent | None]:
    """The stream that the operator reads, and what makes events of its elements."""
    if not isinstance(stream, DataStream):
        raise SettingError(f"stream: expected a DataStream, found {type(stream).__name__}")
    if isinstance(stream, ObjectStream) and to_event is None:
        return stream.encoded, None
    return stream, ReadEvent(to_event)


def outputs(given: flink_infer.InferenceStreams, answers: AnswerModel | None) -> Outputs:
    """The two streams as streams of objects."""
    return Outputs(
        ObjectStream(given.results, ReadResult(answers), "results"),
        ObjectStream(given.dead_letters, decode, "dead letters"),
    )


@dataclass(frozen=True)
class ReadResult:
    """The result in its bytes, its answer an instance of the model where there is one."""

    answers: AnswerModel | None

    def __call__(self, data: bytes) -> Result:
        result: Result = decode(data)
        return result if self.answers is None else replace(result, answer=self.answers(result.answer))
