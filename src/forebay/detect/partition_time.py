"""The clock of one partition of a stream, by its own events alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay.detect.rates import CLOCK_EVENTS, median

HELD_EVENTS = 9
"""At a partition's start so many events are waited for, so that its clock does not begin with a wrong one."""
MOVED_EVENTS = 30
"""A partition has gone on to another time once so many of its last `CLOCK_EVENTS` are there."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An event that is not judged yet, and its number in the stream."""

    number: int
    time_ms: int
    data: bytes


class PartitionTime:
    """The median time of the last events. Those farther away than `far_ms` do not count.

    Events that are far ahead are held until 33 more have come: as many as it takes to know whether they are
    wrong, or the partition has gone on after a gap. `heard_ms`: when it was last heard, by the caller.
    """

    def __init__(self, far_ms: int, heard_ms: int = 0) -> None:
        self._far_ms = far_ms
        self.heard_ms = heard_ms
        self.clock_ms: int | None = None
        """None: it has not begun."""
        self._count = 0
        self._times: deque[tuple[int, int]] = deque(maxlen=CLOCK_EVENTS)
        self._ahead: deque[bool] = deque(maxlen=CLOCK_EVENTS)
        # With their numbers in the partition.
        self._held: list[tuple[int, Waiting]] = []

    @property
    def lowest_ms(self) -> int | None:
        """The earliest time that is to be expected of it; None: there is no saying."""
        if self.clock_ms is not None:
            return self.clock_ms
        return min((each.time_ms for _, each in self._held), default=None)

    def take(self, event: Waiting, *, now_ms: int | None, since: int) -> list[Waiting]:
        """An event; gives those that need not be held any longer, in the order in which they came.

        `now_ms` is the stream's clock: what is near it is not far away, wherever this partition was. Events
        before the `since`th of the stream do not count any more, but the newest always does.
        """
        self._count += 1
        if self.clock_ms is None:
            self._held.append((self._count, event))
            near = now_ms is not None and abs(event.time_ms - now_ms) <= self._far_ms
            return self._begin(now_ms if near else None) if near or len(self._held) >= HELD_EVENTS else []
        due = [each for number, each in self._held if number <= self._count - CLOCK_EVENTS]
        self._held = self._held[len(due) :]
        now_ms = self.clock_ms if now_ms is None else now_ms
        ahead = event.time_ms > max(self.clock_ms, now_ms) + self._far_ms
        self._ahead.append(ahead)
        if ahead:
            self._held.append((self._count, event))
            return due
        if event.time_ms >= min(self.clock_ms, now_ms) - self._far_ms:
            self._times.append((event.number, event.time_ms))
            while self._times[0][0] < since and len(self._times) > 1:
                self._times.popleft()
            self.clock_ms = median([time_ms for _, time_ms in self._times])
        return [*due, event]

    def has_gone_on(self) -> bool:
        """Whether nearly all of the last events are far ahead, and near each other."""
        return self._ahead.count(True) >= MOVED_EVENTS and len(self._chain()) >= MOVED_EVENTS

    def start_over(self) -> tuple[list[Waiting], list[Waiting]]:
        """Forget all; gives the events of the time to which the partition has gone on, to be taken again, and
        the others that were held."""
        chain = self._chain()
        others = [each for _, each in self._held if each not in chain]
        self.clock_ms, self._held = None, []
        self._times.clear()
        self._ahead.clear()
        return chain, others

    def let_go(self) -> list[Waiting]:
        """Nothing more is waited for: all that is held."""
        due = self._begin(None) if self.clock_ms is None and self._held else []
        due += [each for _, each in self._held]
        self._held = []
        return due

    def _begin(self, at_ms: int | None) -> list[Waiting]:
        """The clock begins with the events that are near `at_ms`, or each other."""
        held = self._held
        at_ms = median([each.time_ms for _, each in held]) if at_ms is None else at_ms
        near = [each for _, each in held if abs(each.time_ms - at_ms) <= self._far_ms]
        # At the earliest of them: none makes another late.
        self.clock_ms = min(each.time_ms for each in near)
        self._times.extend((each.number, each.time_ms) for each in near)
        self._ahead.extend(each.time_ms > at_ms + self._far_ms for _, each in held)
        self._held = [(n, each) for n, each in held if each.time_ms > at_ms + self._far_ms]
        return [each for _, each in held if each.time_ms <= at_ms + self._far_ms]

    def _chain(self) -> list[Waiting]:
        """The held events in their order; of several groups of times the largest."""
        best: list[Waiting] = []
        group: list[Waiting] = []
        for _, held in sorted(self._held, key=lambda each: each[1].time_ms):
            if group and held.time_ms - group[-1].time_ms > self._far_ms:
                group = []
            group.append(held)
            best = group if len(group) > len(best) else best
        return sorted(best, key=lambda each: each.number)

    def state(self) -> list[Any]:
        """What `restore` takes; values that msgpack knows."""
        held = [[number, each.number, each.time_ms, each.data] for number, each in self._held]
        return [self.heard_ms, self.clock_ms, self._count, list(self._times), list(self._ahead), held]

    @classmethod
    def restore(cls, far_ms: int, state: Sequence[Any]) -> PartitionTime:
        heard_ms, clock_ms, count, times, ahead, held = state
        self = cls(far_ms, heard_ms)
        self.clock_ms, self._count = clock_ms, count
        self._times.extend((number, time_ms) for number, time_ms in times)
        self._ahead.extend(ahead)
        self._held = [(number, Waiting(*each)) for number, *each in held]
        return self
