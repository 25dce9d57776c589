"""`infer`: put continuous inference into a Flink job."""

from __future__ import annotations

from dataclasses import dataclass

from pyflink.common import Types
from pyflink.datastream import DataStream

from forebay.clock import Clock
from forebay.errors import SettingError
from forebay.flink.inference import DEAD_LETTERS, TIMED, InferenceFunction
from forebay.flink.intervals import PollInterval
from forebay.flink.keying import EventText, Keying, ToEvent
from forebay.flink.ordering import Ordering
from forebay.flink.request_handler import InferenceSpec, OpenRequestHandler
from forebay.flink.shards import MAX_PARALLELISM
from forebay.flink.side_output import side_output
from forebay.flink.thread_mode import check_environment
from forebay.flink.types import BYTES
from forebay.flink.watermarks import reassign_watermarks

DEFAULT_SHARDS = 8


@dataclass(frozen=True)
class InferenceStreams:
    """The two outputs of an inference operator, both streams of encoded records (`forebay.codec.decode`)."""

    results: DataStream
    dead_letters: DataStream


def infer(
    stream: DataStream,
    call: InferenceSpec,
    *,
    to_event: ToEvent | None = None,
    key: EventText | None = None,
    id: EventText | None = None,
    capacity: int = 64,
    ordering: Ordering = "unordered",
    shards: int = DEFAULT_SHARDS,
    event_time: bool = False,
    parallelism: int | None = None,
    pace: PollInterval | None = None,
    clock: Clock | None = None,
    name: str = "infer",
) -> InferenceStreams:
    """Ask the engine about every element of `stream`, exactly once as far as Flink's state goes.

    `to_event` makes an `Event` of an element; without it, elements are encoded records, as Forebay's sources
    give them. At most `capacity` requests are in flight per subtask; past that the input is blocked. Answers
    leave in the order in which they come (`unordered`), or in the input's order within each `key`.

    `shards` is the number of Flink keys that state is spread over: at least the parallelism, and the same
    for the life of a pipeline where order matters. With `event_time`, results carry the event's time, and
    the watermark behind the operator never passes an event whose answer is still awaited.

    The operator's `uid` is `name`: it must be unique in the job, and stay for state to be found again.
    Raises `SettingError` where the settings contradict each other, and where Python would run in worker
    processes (`python.execution-mode` must be `thread`) or the checkpoint to restore was made by them.
    """
    if ordering == "key" and key is None:
        raise SettingError("ordering by key needs a key")
    function = InferenceFunction(
        OpenRequestHandler(call),
        capacity=capacity,
        ordering=ordering,
        pace=pace,
        event_time=event_time,
        clock=clock,
    )
    return attach(
        stream,
        function,
        to_event=to_event,
        key=key,
        id=id,
        capacity=capacity,
        shards=shards,
        event_time=event_time,
        parallelism=parallelism,
        name=name,
    )


def attach(
    stream: DataStream,
    function: InferenceFunction,
    *,
    to_event: ToEvent | None,
    key: EventText | None,
    id: EventText | None,
    capacity: int,
    shards: int,
    event_time: bool,
    parallelism: int | None,
    name: str,
) -> InferenceStreams:
    """Put `function` behind `stream`, keyed by shards. Raises `SettingError` like `infer`."""
    wanted = parallelism or stream.get_execution_environment().get_parallelism()
    if not 1 <= shards <= MAX_PARALLELISM:
        raise SettingError(f"shards must be from 1 to {MAX_PARALLELISM}, found {shards}")
    if wanted > shards:
        raise SettingError(f"parallelism {wanted} needs at least as many shards, found {shards}")
    if capacity < 1:
        raise SettingError(f"capacity must be at least 1, found {capacity}")
    check_environment(stream.get_execution_environment())
    keying = Keying(shards=shards, key=key, id=id, to_event=to_event)
    # At the stream's own parallelism: at the environment's default, records would be dealt out and lose their
    # order, and another parallelism would change the graph, so that state would not be found again.
    keys = stream.flat_map(keying, Types.TUPLE([Types.INT(), BYTES]))
    keys.name(f"{name}: key").set_parallelism(stream._j_data_stream.getParallelism())
    keyed = keys.key_by(lambda element: element[0], Types.INT())
    answered = keyed.process(function, TIMED if event_time else BYTES).name(name).uid(name)
    answered.set_parallelism(wanted)
    answered.set_max_parallelism(MAX_PARALLELISM)
    dead_letters = side_output(answered, DEAD_LETTERS)
    return InferenceStreams(reassign_watermarks(answered, name) if event_time else answered, dead_letters)
