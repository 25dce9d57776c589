"""The event time before which nothing more can leave an operator that holds events back."""

from __future__ import annotations

import heapq

UNKNOWN_MS = -(2**63)
"""Flink's lowest watermark: promises nothing."""
EARLIEST_MS = -62_135_596_800_000
LATEST_MS = 253_402_300_799_999
"""The years 1 to 9999: all that Flink's table layer takes for a time."""


class LowWatermark:
    """The lowest event time still held by a subtask, minus one; the input's watermark where nothing is held.

    After a restore, events may rest in the state of shards that were not looked at yet. Until `restored` is
    called nothing is promised.
    """

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._held: dict[int, int] = {}
        self._restored = False
        self._low_ms = UNKNOWN_MS

    def restored(self) -> None:
        """All shards that had events in a checkpoint have been looked at."""
        self._restored = True

    def hold(self, time_ms: int | None) -> None:
        """An event was accepted. Events without a time hold nothing back."""
        if time_ms is None:
            return
        if time_ms not in self._held:
            heapq.heappush(self._heap, time_ms)
        self._held[time_ms] = self._held.get(time_ms, 0) + 1

    def let_go(self, time_ms: int | None) -> None:
        """Its answer leaves. It must have been held."""
        if time_ms is None:
            return
        self._held[time_ms] -= 1
        if not self._held[time_ms]:
            del self._held[time_ms]
            while self._heap and self._heap[0] not in self._held:
                heapq.heappop(self._heap)

    def now_ms(self, input_watermark_ms: int) -> int:
        """The low watermark; never goes back."""
        if not self._restored:
            return self._low_ms
        low = min(self._heap[0] - 1, input_watermark_ms) if self._heap else input_watermark_ms
        self._low_ms = max(self._low_ms, low)
        return self._low_ms


def clamp_ms(time_ms: int) -> int:
    """`time_ms` within the years 1 to 9999."""
    return min(LATEST_MS, max(EARLIEST_MS, time_ms))
