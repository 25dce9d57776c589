"""What an operator holds of event time: its output's watermark, and when the oldest open event was read."""

from __future__ import annotations

from pyflink.common import Row, Types

from forebay.flink.event_time import EARLIEST_MS, LowWatermark, MinTracker, clamp_ms
from forebay.records import Result
from forebay.stateful.machine import HoldWatermark

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
        """A `TIMED` row that holds the result, given the input's watermark."""
        low_ms = clamp_ms(self._low.now_ms(watermark_ms))
        self._emitted_low_ms = max(self._emitted_low_ms, low_ms)
        time_ms = low_ms if answer.time_ms is None else clamp_ms(answer.time_ms)
        return Row(time_ms, low_ms, data.decode("latin-1"))

    def advanced(self, watermark_ms: int) -> Row | None:
        """A `TIMED` row with the output's watermark if that is higher than the last one emitted."""
        low_ms = clamp_ms(self._low.now_ms(watermark_ms))
        if low_ms <= self._emitted_low_ms:
            return None
        self._emitted_low_ms = low_ms
        return Row(low_ms, low_ms, "")
