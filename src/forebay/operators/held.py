"""The times of what a subtask holds: which is the lowest?"""

from __future__ import annotations

import heapq

SPARE = 64


class HeldTimes:
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
