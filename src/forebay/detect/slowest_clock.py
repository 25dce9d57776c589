"""The clock of texts that are read of several partitions, by the events alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay.detect.rates import EventClock

SURE_EVENTS = 9
"""A partition counts once it has so many events: its first may be wrong."""
SILENT_EVENTS = 1_000
"""A partition is not waited for once so many events, times the partitions, have come since its last."""
MOST_PARTITIONS = 1024


class SlowestClock:
    """The time of the slowest of the partitions that are heard: each has an `EventClock`.

    With one partition it is that one's, and follows the events, also back.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self._count = 0
        # In the order in which they were last heard: when that was, how many events it had, and its clock.
        self._partitions: dict[str, tuple[int, int, EventClock]] = {}

    def see(self, time_ms: int, partition: str = "") -> int:
        """An event; gives the time now."""
        self._count += 1
        _, seen, clock = self._partitions.pop(partition, (0, 0, EventClock()))
        clock.see(time_ms)
        self._partitions[partition] = (self._count, seen + 1, clock)
        self._leave_silent()
        clocks = self._partitions.values()
        sure = [clock.now_ms for _, seen, clock in clocks if seen >= SURE_EVENTS]
        self.now_ms = min(sure or [clock.now_ms for _, _, clock in clocks])
        return self.now_ms

    def _leave_silent(self) -> None:
        while len(self._partitions) > 1:
            name, (heard, _, _) = next(iter(self._partitions.items()))
            silent = heard < self._count - SILENT_EVENTS * len(self._partitions)
            if not silent and len(self._partitions) <= MOST_PARTITIONS:
                return
            del self._partitions[name]

    def state(self) -> list[Any]:
        partitions = [[name, heard, seen, c.state()] for name, (heard, seen, c) in self._partitions.items()]
        return [self.now_ms, self._count, partitions]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> SlowestClock:
        """Become what `state` was taken of, or that of an `EventClock`, as older versions kept."""
        self = cls()
        if len(state) == 2:
            clock = EventClock.restore(state)
            state = [clock.now_ms, 0, [["", 0, SURE_EVENTS, state]] if state[1] else []]
        self.now_ms, self._count, partitions = state
        for name, heard, seen, kept in partitions:
            self._partitions[name] = (heard, seen, EventClock.restore(kept))
        return self
