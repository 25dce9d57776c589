"""Event time in Flink: timestamps and watermarks from the times of records, and watermarks that stay below
what an operator still holds."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.datastream import DataStream, ProcessFunction
from pyflink.java_gateway import get_gateway
from pyflink.table import DataTypes, Schema, StreamTableEnvironment

from forebay.clock import Clock, SystemClock
from forebay.codec import decode
from forebay.flink.types import BYTES

NO_TIME_MS = -(2**63)
"""Flink's value for a record without a timestamp, below every watermark."""


AHEAD_MS = 24 * 3_600_000
"""A time further ahead of the wall clock is wrong, and does not move event time."""


def with_event_time(stream: DataStream, *, out_of_orderness_ms: int) -> DataStream:
    """`stream` with each record's `time_ms` as its Flink timestamp, and watermarks `out_of_orderness_ms`
    behind the highest time.

    Ignored are records without a time, and times more than `AHEAD_MS` ahead of the wall clock. Order and
    parallelism stay. No subtask is marked idle: an operator that still awaits answers forwards the mark, and
    windows after it would close without them.
    """
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(out_of_orderness_ms))
    # Like DataStream.assign_timestamps_and_watermarks, but at the stream's own parallelism: at the
    # environment's default, a stream of one subtask would be rebalanced and lose its order.
    parallelism = stream._j_data_stream.getParallelism()
    timed = stream.process(RecordTime(), Types.TUPLE([BYTES, Types.LONG()])).name("event time")
    timed.set_parallelism(parallelism)
    functions = get_gateway().jvm.org.apache.flink.streaming.api.functions.python.eventtime
    marked = timed._j_data_stream.assignTimestampsAndWatermarks(
        strategy._j_watermark_strategy.withTimestampAssigner(functions.CustomTimestampAssigner())
    )
    marked.setParallelism(parallelism)
    plain = marked.map(functions.RemoveTimestampMapFunction(), stream._j_data_stream.getType())
    plain.setParallelism(parallelism)
    return DataStream(plain)


class RecordTime(ProcessFunction):
    """Each record with the time to which it may move the stream's clock."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def process_element(self, value: bytes, ctx: ProcessFunction.Context) -> Iterator[tuple[bytes, int]]:
        time_ms: int | None = decode(bytes(value)).time_ms
        moves = time_ms is not None and time_ms <= self._clock.wall_ms() + AHEAD_MS
        yield value, time_ms if time_ms is not None and moves else NO_TIME_MS


SPARE = 64


class MinTracker:
    """A multiset of times with their minimum."""

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
    """The lowest event time still held by a subtask, minus one; the input's watermark if nothing is held.

    After a restore, hold everything before the first `now_ms`.
    """

    def __init__(self) -> None:
        self._held = MinTracker()
        self._low_ms = UNKNOWN_MS

    def hold(self, time_ms: int | None) -> None:
        """Hold the time of an accepted event; None holds nothing."""
        if time_ms is not None:
            self._held.add(time_ms)

    def release(self, time_ms: int | None) -> None:
        if time_ms is not None:
            self._held.remove(time_ms)

    def now_ms(self, input_watermark_ms: int) -> int:
        """The low watermark; never decreases."""
        lowest = self._held.lowest
        low = input_watermark_ms if lowest is None else min(lowest - 1, input_watermark_ms)
        self._low_ms = max(self._low_ms, low)
        return self._low_ms


def clamp_ms(time_ms: int) -> int:
    return min(LATEST_MS, max(EARLIEST_MS, time_ms))


YEAR_MS = 365 * 86_400_000
YEAR_1900_MS = -2_208_988_800_000


def is_suspect(time_ms: int) -> bool:
    """Whether a time is in 1970 or 1900: seconds read as milliseconds are in January 1970, dates without a
    year in 1900."""
    return 0 <= time_ms < YEAR_MS or YEAR_1900_MS <= time_ms < YEAR_1900_MS + YEAR_MS


def reassign_watermarks(rows: DataStream, name: str) -> DataStream:
    """The records of `TIMED` rows, with event times and watermarks from their columns.

    A keyed function forwards its input's watermark at once, so the result of a slow request would be late.
    Only the table layer of PyFlink can take a watermark from a column.
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
