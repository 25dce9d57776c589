"""A stream's own clock, for jobs that work in event time.

Flink's watermarks follow the highest time seen, and move with the wall clock: one event from the future makes
all others late, and which ones are late changes from run to run. Here that depends only on the events and
their order (`StreamTime`), and on how several partitions are interleaved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.datastream import DataStream, KeyedProcessFunction, OutputTag, RuntimeContext
from pyflink.datastream.state import MapStateDescriptor
from pyflink.java_gateway import get_gateway

from forebay.clock import Clock, SystemClock
from forebay.codec import decode, encode
from forebay.errors import NoTime, RecordError, TooFarAhead, TooLate, detail_text
from forebay.flink.activity import ActivityMarks
from forebay.flink.shards import MAX_PARALLELISM, flink_keys, shard_of
from forebay.flink.stages import message
from forebay.flink.types import BYTES, END_OF_INPUT_MS, STATE, side_output
from forebay.records import DeadLetter, Event
from forebay.stateful.stream_time import Judged, StreamTime, Tolerance

REFUSED = OutputTag("refused", BYTES)

NO_TIME_MS = -(2**62)
"""Earlier than any time: moves no watermark."""

PARTITION = re.compile(r"(.+/\d+)@\d+")
"""Position of a Kafka record: `topic/partition@offset`."""

ToMessage = Callable[[Event], bytes]


@dataclass(frozen=True)
class Clocked:
    """Messages in the stream's event time, and the encoded dead letters of refused records."""

    messages: DataStream
    refused: DataStream


class StreamClock(KeyedProcessFunction):
    """Takes encoded records; emits `(message, clock)`. Dead letters go to `REFUSED`, as do events without a
    time (cause `no_time`), too late (`late`), too far ahead (`ahead`) or without a message.

    Messages are spread over `shards` by the events' positions. Before the clock has started, they carry
    `NO_TIME_MS`.
    """

    def __init__(
        self,
        to_message: ToMessage,
        *,
        tolerance: Tolerance,
        shards: int,
        clock: Clock | None = None,
    ) -> None:
        self._to_message = to_message
        self._tolerance = tolerance
        self._shards = shards
        self._clock = clock or SystemClock()

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_map_state(MapStateDescriptor("clocks", Types.STRING(), STATE))
        self._seen_s: float | None = None
        self._keys = flink_keys(self._shards)
        self._time: StreamTime | None = None
        self._marks = ActivityMarks(runtime_context)

    def process_element(self, value: bytes, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        time = self._time or self._recover(ctx)
        data = bytes(value)
        record = decode(data)
        if isinstance(record, DeadLetter):
            self._marks.answered()
            yield REFUSED, data
        elif record.time_ms is None:
            self._marks.answered()
            yield REFUSED, refused(record, NoTime("the event has no time; name its field in the source"))
        else:
            partition = partition_of(record.position)
            yield from self._messages(time.see(record.time_ms, data, partition, passed_ms=self._passed_ms()))
            self._save(time)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        time = self._time or self._recover(ctx)
        yield from self._messages(time.end())
        self._save(time)

    def _save(self, time: StreamTime) -> None:
        for partition, data in time.changes():
            if data is None:
                self._state.remove(partition)
            else:
                self._state.put(partition, data)

    def _passed_ms(self) -> int:
        now_s = self._clock.monotonic_s()
        before_s, self._seen_s = self._seen_s, now_s
        return 0 if before_s is None else round((now_s - before_s) * 1000)

    def _messages(self, judged: Iterable[Judged]) -> Iterator[Any]:
        for each in judged:
            event: Event = decode(each.data)
            try:
                data = self._message(event, each)
            except RecordError as error:
                self._marks.answered()
                yield REFUSED, refused(event, error)
                continue
            shard = shard_of(event.position or event.raw.hex(), self._shards)
            yield message(self._keys[shard], data), NO_TIME_MS if each.clock_ms is None else each.clock_ms

    def _message(self, event: Event, judged: Judged) -> bytes:
        if judged.verdict == "late":
            allowed = f"late_s allows {self._tolerance.late_ms / 1000:g}"
            raise TooLate(f"{-judged.ahead_ms / 1000:.0f} s behind the stream; {allowed}")
        if judged.verdict == "ahead":
            allowed = f"ahead_s allows {self._tolerance.ahead_ms / 1000:g}"
            raise TooFarAhead(f"{judged.ahead_ms / 1000:.0f} s ahead of the stream; {allowed}")
        return self._to_message(event)

    def _recover(self, ctx: KeyedProcessFunction.Context) -> StreamTime:
        time = self._time = StreamTime(self._tolerance)
        time.restore(dict(self._state.items()))
        ctx.timer_service().register_event_time_timer(END_OF_INPUT_MS)
        return time


def partition_of(position: str | None) -> str:
    """The partition that an event was read from; empty if its source has none."""
    found = PARTITION.fullmatch(position or "")
    return "" if found is None else found[1]


def clocked(
    stream: DataStream,
    to_message: ToMessage,
    *,
    tolerance: Tolerance,
    shards: int,
    name: str,
) -> Clocked:
    """`stream` of encoded records as messages for a stage of `shards` shards, in the clock's event time.

    One subtask keeps the clock. Its `uid` is `name`.
    """
    key = flink_keys(1)[0]
    function = StreamClock(to_message, tolerance=tolerance, shards=shards)
    timed = stream.key_by(lambda _: key, Types.INT()).process(function, Types.TUPLE([BYTES, Types.LONG()]))
    timed.name(name).uid(name).set_parallelism(1).set_max_parallelism(MAX_PARALLELISM)
    refused = side_output(timed, REFUSED)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(tolerance.late_ms))
    # Like DataStream.assign_timestamps_and_watermarks, but in one subtask.
    functions = get_gateway().jvm.org.apache.flink.streaming.api.functions.python.eventtime
    marked = timed._j_data_stream.assignTimestampsAndWatermarks(
        strategy._j_watermark_strategy.withTimestampAssigner(functions.CustomTimestampAssigner())
    )
    marked.setParallelism(1)
    plain = marked.map(functions.RemoveTimestampMapFunction(), BYTES.get_java_type_info())
    plain.setParallelism(1)
    return Clocked(DataStream(plain), refused)


def refused(event: Event, error: RecordError) -> bytes:
    letter = DeadLetter(
        raw=event.raw,
        cause=error.cause,
        detail=detail_text(str(error)),
        time_ms=event.time_ms,
        position=event.position,
        record_key=event.record_key,
        headers=event.headers,
        record_ms=event.record_ms,
    )
    return encode(letter)
