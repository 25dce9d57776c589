"""The event time before which nothing more can leave an operator that holds events back."""

from __future__ import annotations

from forebay.operators.held import HeldTimes

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
        self._held = HeldTimes()
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
