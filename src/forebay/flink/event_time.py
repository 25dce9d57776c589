"""Event time in Flink: watermarks from records' times or a clock, and what an operator still holds."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyflink.common import Duration, Row, Types, WatermarkStrategy
from pyflink.datastream import DataStream, KeyedProcessFunction, OutputTag, ProcessFunction, RuntimeContext
from pyflink.datastream.state import MapStateDescriptor
from pyflink.java_gateway import get_gateway
from pyflink.table import DataTypes, Schema, StreamTableEnvironment

from forebay.clock import Clock, SystemClock
from forebay.codec import decode, encode
from forebay.errors import NoTime, RecordError, TooFarAhead, TooLate
from forebay.flink.keying import refused
from forebay.flink.metrics import IntakeCounter
from forebay.flink.shards import MAX_PARALLELISM, flink_keys, shard_of
from forebay.flink.stages import message
from forebay.flink.types import BYTES, END_OF_INPUT_MS, STATE, side_output
from forebay.records import DeadLetter, Event, Result
from forebay.stateful.machine import HoldWatermark
from forebay.stateful.stream_time import Judged, StreamTime, Tolerance

TIMED_BYTES = Types.TUPLE([BYTES, Types.LONG()])
NO_TIME_MS = -(2**63)
"""Flink's value for a record without a timestamp, below every watermark."""


HEARTBEAT_MS = 200
AHEAD_MS = 24 * 3_600_000


def with_event_time(stream: DataStream, *, out_of_orderness_ms: int) -> DataStream:
    """`stream` with its records' times as timestamps, and watermarks behind the highest.

    No subtask is marked idle: an operator that awaits answers would forward the mark, and later windows
    close.
    """
    # At the environment's parallelism, a stream of one subtask would be rebalanced and lose its order.
    parallelism = stream._j_data_stream.getParallelism()
    timed = stream.process(RecordTime(), TIMED_BYTES).name("event time").set_parallelism(parallelism)
    return _with_times(timed, out_of_orderness_ms, parallelism, stream._j_data_stream.getType())


def _with_times(timed: DataStream, late_ms: int, parallelism: int, plain_type: Any) -> DataStream:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(late_ms))
    functions = get_gateway().jvm.org.apache.flink.streaming.api.functions.python.eventtime
    marked = timed._j_data_stream.assignTimestampsAndWatermarks(
        strategy._j_watermark_strategy.withTimestampAssigner(functions.CustomTimestampAssigner())
    )
    marked.setParallelism(parallelism)
    plain = marked.map(functions.RemoveTimestampMapFunction(), plain_type)
    plain.setParallelism(parallelism)
    return DataStream(plain)


class RecordTime(ProcessFunction):
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def process_element(self, value: bytes, ctx: ProcessFunction.Context) -> Iterator[tuple[bytes, int]]:
        time_ms: int | None = decode(bytes(value)).time_ms
        moves = time_ms is not None and time_ms <= self._clock.wall_ms() + AHEAD_MS
        yield value, time_ms if time_ms is not None and moves else NO_TIME_MS


SPARE = 64


class MinTracker:
    def __init__(self) -> None:
        self._heap: list[int] = []
        self._held: dict[int, int] = {}

    def add(self, time_ms: int) -> None:
        if time_ms not in self._held:
            heapq.heappush(self._heap, time_ms)
        self._held[time_ms] = self._held.get(time_ms, 0) + 1

    def remove(self, time_ms: int) -> None:
        self._held[time_ms] -= 1
        if not self._held[time_ms]:
            del self._held[time_ms]
            if len(self._heap) > 2 * len(self._held) + SPARE:
                # Drop removed times that an earlier time keeps in the heap.
                self._heap = sorted(self._held)
            while self._heap and self._heap[0] not in self._held:
                heapq.heappop(self._heap)

    @property
    def lowest(self) -> int | None:
        return self._heap[0] if self._heap else None


UNKNOWN_MS = -(2**63)
EARLIEST_MS = -62_135_596_800_000
LATEST_MS = 253_402_300_799_999
"""The years 1 to 9999, the range of Flink's table layer."""


class LowWatermark:
    """The lowest event time still held, minus one; the input's watermark if nothing is held.

    After a restore, hold everything before the first `now_ms`.
    """

    def __init__(self) -> None:
        self._held = MinTracker()
        self._low_ms = UNKNOWN_MS

    def hold(self, time_ms: int | None) -> None:
        if time_ms is not None:
            self._held.add(time_ms)

    def release(self, time_ms: int | None) -> None:
        if time_ms is not None:
            self._held.remove(time_ms)

    def now_ms(self, input_watermark_ms: int) -> int:
        lowest = self._held.lowest
        low = input_watermark_ms if lowest is None else min(lowest - 1, input_watermark_ms)
        self._low_ms = max(self._low_ms, low)
        return self._low_ms


def clamp_ms(time_ms: int) -> int:
    return min(LATEST_MS, max(EARLIEST_MS, time_ms))


YEAR_MS = 365 * 86_400_000
YEAR_1900_MS = -2_208_988_800_000


def is_suspect(time_ms: int) -> bool:
    """Whether a time is in 1970 (seconds read as milliseconds) or 1900 (dates without a year)."""
    return 0 <= time_ms < YEAR_MS or YEAR_1900_MS <= time_ms < YEAR_1900_MS + YEAR_MS


def reassign_watermarks(rows: DataStream, name: str) -> DataStream:
    """The records of `TIMED` rows, with event times and watermarks from their columns.

    A keyed function forwards its input's watermark at once, so results would be late. Only PyFlink's table
    layer can take a watermark from a column.
    """
    tables = StreamTableEnvironment.create(rows.get_execution_environment())
    schema = (
        Schema.new_builder()
        .column("time_ms", DataTypes.BIGINT())
        .column("low_ms", DataTypes.BIGINT())
        .column("record", DataTypes.STRING())
        .column_by_expression("event_time", "to_timestamp_ltz(time_ms, 3)")
        .watermark("event_time", "to_timestamp_ltz(low_ms, 3)")
        .build()
    )
    timed = tables.to_data_stream(tables.from_data_stream(rows, schema))
    return (
        timed.filter(lambda row: row[2] != "")
        .map(lambda row: row[2].encode("latin-1"), BYTES)
        .name(f"{name}: event time")
    )


REFUSED = OutputTag("refused", BYTES)

BEFORE_START_MS = -(2**62)

PARTITION = re.compile(r"(.+/\d+)@\d+")

ToMessage = Callable[[Event], bytes]


@dataclass(frozen=True)
class Clocked:
    messages: DataStream
    refused: DataStream


class StreamClock(KeyedProcessFunction):
    """Takes encoded records; emits `(message, clock)`, and dead letters to `REFUSED`.

    Unlike Flink's watermarks, this clock depends only on the events and their order (`StreamTime`).
    """

    def __init__(
        self, to_message: ToMessage, *, tolerance: Tolerance, shards: int, clock: Clock | None = None
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
        self._intake = IntakeCounter(runtime_context, self._clock)

    def close(self) -> None:
        self._intake.flush()

    def process_element(self, value: bytes, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        time = self._time or self._recover(ctx)
        self._intake.read()
        data = bytes(value)
        record = decode(data)
        if isinstance(record, DeadLetter):
            self._intake.refuse(record.cause)
            yield REFUSED, data
        elif record.time_ms is None:
            yield self._refused(record, NoTime("the event has no time; name its field in the source"))
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
                yield self._refused(event, error)
                continue
            shard = shard_of(event.position or event.raw.hex(), self._shards)
            yield (
                message(self._keys[shard], data),
                BEFORE_START_MS if each.clock_ms is None else each.clock_ms,
            )

    def _refused(self, event: Event, error: RecordError) -> tuple[OutputTag, bytes]:
        letter = refused(event, error)
        self._intake.refuse(letter.cause)
        return REFUSED, encode(letter)

    def _message(self, event: Event, judged: Judged) -> bytes:
        if judged.verdict == "late":
            allowed = f"late_s allows {self._tolerance.late_ms / 1000:g}"
            raise TooLate(f"{-judged.ahead_ms / 1000:.0f} s behind the stream; {allowed}")
        if judged.verdict == "ahead":
            allowed = f"ahead_s allows {self._tolerance.ahead_ms / 1000:g}"
            raise TooFarAhead(f"{judged.ahead_ms / 1000:.0f} s ahead of the stream; {allowed}")
        return self._to_message(replace(event, time_ms=judged.time_ms))

    def _recover(self, ctx: KeyedProcessFunction.Context) -> StreamTime:
        time = self._time = StreamTime(self._tolerance)
        time.restore(dict(self._state.items()))
        ctx.timer_service().register_event_time_timer(END_OF_INPUT_MS)
        return time


def partition_of(position: str | None) -> str:
    found = PARTITION.fullmatch(position or "")
    return "" if found is None else found[1]


def clocked(
    stream: DataStream, to_message: ToMessage, *, tolerance: Tolerance, shards: int, name: str
) -> Clocked:
    key = flink_keys(1)[0]
    function = StreamClock(to_message, tolerance=tolerance, shards=shards)
    timed = stream.key_by(lambda _: key, Types.INT()).process(function, TIMED_BYTES)
    timed.name(name).uid(name).set_parallelism(1).set_max_parallelism(MAX_PARALLELISM)
    messages = _with_times(timed, tolerance.wait_ms, 1, BYTES.get_java_type_info())
    return Clocked(messages, side_output(timed, REFUSED))


TIMED = Types.ROW_NAMED(["time_ms", "low_ms", "record"], [Types.LONG(), Types.LONG(), Types.STRING()])
"""An empty record carries only a watermark."""


class WatermarkHolds:
    def __init__(self) -> None:
        self._low = LowWatermark()
        self._read_times = MinTracker()
        self._emitted_low_ms = EARLIEST_MS

    @property
    def oldest_read_ms(self) -> int | None:
        return self._read_times.lowest

    def hold(self, held: HoldWatermark) -> None:
        self._low.hold(held.time_ms)
        if held.read_ms is not None:
            self._read_times.add(held.read_ms)

    def release(self, held: HoldWatermark) -> None:
        self._low.release(held.time_ms)
        if held.read_ms is not None:
            self._read_times.remove(held.read_ms)

    def timed(self, answer: Result, data: bytes, watermark_ms: int) -> Row:
        low_ms = clamp_ms(self._low.now_ms(watermark_ms))
        self._emitted_low_ms = max(self._emitted_low_ms, low_ms)
        time_ms = low_ms if answer.time_ms is None else clamp_ms(answer.time_ms)
        return Row(time_ms, low_ms, data.decode("latin-1"))

    def advance(self, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        timers = ctx.timer_service()
        watermark_ms = timers.current_watermark()
        low_ms = clamp_ms(self._low.now_ms(watermark_ms))
        if low_ms > self._emitted_low_ms:
            self._emitted_low_ms = low_ms
            yield Row(low_ms, low_ms, "")
        if watermark_ms < END_OF_INPUT_MS - HEARTBEAT_MS:
            timers.register_event_time_timer(max(watermark_ms, 0) + HEARTBEAT_MS)
