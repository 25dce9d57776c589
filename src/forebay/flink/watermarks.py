"""Event time in Flink: timestamps and watermarks from the times of records, and watermarks that stay below
what an operator still holds.
"""

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
"""Flink's own value for a record without a timestamp; it is below every watermark."""


def with_event_time(
    stream: DataStream, *, out_of_orderness_ms: int, ahead_ms: int | None = None
) -> DataStream:
    """`stream` with each record's `time_ms` as its Flink timestamp, and watermarks behind it.

    The watermark trails the highest time seen by `out_of_orderness_ms`. A record without a time does not move
    the stream's clock, nor does one more than `ahead_ms` ahead of the wall clock: everything after it would
    be late. Order and parallelism stay as they are. No subtask is ever marked as idle: that mark
    would pass through an operator that still awaits answers, and windows behind it would close without them.
    """
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(out_of_orderness_ms))
    # What DataStream.assign_timestamps_and_watermarks does, but at the stream's own parallelism: at the
    # environment's default a stream of one subtask would be dealt out, and its order lost.
    parallelism = stream._j_data_stream.getParallelism()
    timed = stream.process(RecordTime(ahead_ms), Types.TUPLE([BYTES, Types.LONG()])).name("event time")
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

    def __init__(self, ahead_ms: int | None = None, clock: Clock | None = None) -> None:
        self._ahead_ms = ahead_ms
        self._clock = clock or SystemClock()

    def process_element(self, value: bytes, ctx: ProcessFunction.Context) -> Iterator[tuple[bytes, int]]:
        time_ms: int | None = decode(bytes(value)).time_ms
        yield value, NO_TIME_MS if time_ms is None or self._too_far(time_ms) else time_ms

    def _too_far(self, time_ms: int) -> bool:
        return self._ahead_ms is not None and time_ms > self._clock.wall_ms() + self._ahead_ms


SPARE = 64


class MinTracker:
    """Times that were added and not yet removed; equal ones count as often as they were added."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._held: dict[int, int] = {}

    def add(self, time_ms: int) -> None:
        if time_ms not in self._held:
            heapq.heappush(self._heap, time_ms)
        self._held[time_ms] = self._held.get(time_ms, 0) + 1

    def remove(self, time_ms: int) -> None:
        """It must have been added."""
        self._held[time_ms] -= 1
        if not self._held[time_ms]:
            del self._held[time_ms]
            if len(self._heap) > 2 * len(self._held) + SPARE:
                # Times that went while an earlier one stays.
                self._heap = sorted(self._held)
            while self._heap and self._heap[0] not in self._held:
                heapq.heappop(self._heap)

    @property
    def lowest(self) -> int | None:
        """None where nothing is held."""
        return self._heap[0] if self._heap else None


UNKNOWN_MS = -(2**63)
"""Flink's lowest watermark: promises nothing."""
EARLIEST_MS = -62_135_596_800_000
LATEST_MS = 253_402_300_799_999
"""The years 1 to 9999: all that Flink's table layer takes for a time."""


class LowWatermark:
    """The lowest event time still held by a subtask, minus one; the input's watermark where nothing is held.

    What a checkpoint brings back must be held before the first look.
    """

    def __init__(self) -> None:
        self._held = MinTracker()
        self._low_ms = UNKNOWN_MS

    def hold(self, time_ms: int | None) -> None:
        """An event was accepted. Events without a time hold nothing back."""
        if time_ms is not None:
            self._held.add(time_ms)

    def let_go(self, time_ms: int | None) -> None:
        """Its answer leaves. It must have been held."""
        if time_ms is not None:
            self._held.remove(time_ms)

    def now_ms(self, input_watermark_ms: int) -> int:
        """The low watermark; never goes back."""
        lowest = self._held.lowest
        low = input_watermark_ms if lowest is None else min(lowest - 1, input_watermark_ms)
        self._low_ms = max(self._low_ms, low)
        return self._low_ms


def clamp_ms(time_ms: int) -> int:
    """`time_ms` within the years 1 to 9999."""
    return min(LATEST_MS, max(EARLIEST_MS, time_ms))


YEAR_MS = 365 * 86_400_000
YEAR_1900_MS = -2_208_988_800_000


def is_suspect(time_ms: int) -> bool:
    """Whether a time is in 1970 or 1900: seconds that were read as milliseconds are in January 1970, dates
    without a year in 1900."""
    return 0 <= time_ms < YEAR_MS or YEAR_1900_MS <= time_ms < YEAR_1900_MS + YEAR_MS


def reassign_watermarks(rows: DataStream, name: str) -> DataStream:
    """The records of `TIMED` rows, with their event times and watermarks taken from the `low_ms` column.

    A keyed function forwards its input's watermark at once, so a slow request's result would come late. The
    table layer is the one place where PyFlink lets a watermark come from a column.
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
