"""Flink's timestamps and watermarks from the times of records."""

from __future__ import annotations

from collections.abc import Iterator

from pyflink.common import Duration, Types, WatermarkStrategy
from pyflink.datastream import DataStream, ProcessFunction
from pyflink.java_gateway import get_gateway

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
