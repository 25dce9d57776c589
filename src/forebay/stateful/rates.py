"""Decayed counts and their comparison, and clocks driven by events alone."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Doubles = npt.NDArray[np.float64]


def rise(
    count: npt.ArrayLike, exposure: npt.ArrayLike, before: npt.ArrayLike, past: npt.ArrayLike
) -> Doubles:
    """Evidence in nats that a share of the stream has risen, elementwise; 0 if it has not.

    Compares `count` of `exposure` now with `before` of `past` in history: the log-likelihood ratio of two
    Poisson rates (Dunning 1993).
    """
    import numpy as np  # jobs need the clocks below, and start sooner without it

    k, n, b, m = (np.maximum(np.asarray(x, np.float64), 0) for x in (count, exposure, before, past))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (k + b) / (n + m)
        # Separate logarithms: the quotient of almost decayed counts would underflow to 0.
        gain = np.where(k > 0, k * (np.log(k) - np.log(share * n)), 0) + np.where(
            b > 0, b * (np.log(b) - np.log(share * m)), 0
        )
        risen = (n > 0) & (m > 0) & (k * m > b * n)
    return np.where(risen, gain, 0.0)


def decay(elapsed_ms: float, half_life_ms: float) -> float:
    return float(0.5 ** min(max(elapsed_ms, 0.0) / half_life_ms, 1000.0))


@dataclass(slots=True)
class ArrivalPace:
    """Two exponentially decayed counts: recent ones and history, the longer half-life minus the shorter.

    A time older than the shorter half-life replaces the latest time, which was wrong.
    """

    recent: float = 0.0
    all: float = 0.0
    at_ms: int | None = None

    def add(self, amount: float, now_ms: int, short_ms: float, long_ms: float) -> None:
        if self.at_ms is None or now_ms < self.at_ms - short_ms:
            self.at_ms = now_ms
        elapsed = now_ms - self.at_ms
        self.recent = self.recent * decay(elapsed, short_ms) + amount
        self.all = self.all * decay(elapsed, long_ms) + amount
        self.at_ms = max(now_ms, self.at_ms)

    @property
    def history(self) -> float:
        return max(self.all - self.recent, 0.0)


CLOCK_EVENTS = 33


class EventClock:
    def __init__(self) -> None:
        self._times: deque[int] = deque(maxlen=CLOCK_EVENTS)
        self.now_ms = 0

    def see(self, time_ms: int) -> int:
        self._times.append(time_ms)
        self.now_ms = median(self._times)
        return self.now_ms

    def state(self) -> list[Any]:
        return [self.now_ms, list(self._times)]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> EventClock:
        self = cls()
        self.now_ms = state[0]
        self._times.extend(state[1])
        return self


def median(times: Iterable[int]) -> int:
    ordered = sorted(times)
    return ordered[(len(ordered) - 1) // 2]


def ratio(count: float, exposure: float, before: float, past: float) -> float:
    if exposure <= 0 or count <= 0:
        return 0.0
    if before <= 0 or past <= 0:
        return math.inf
    return (count / exposure) / (before / past)


SURE_EVENTS = 9
"""Events before a partition's clock counts, because the first ones may be wrong."""
SILENT_EVENTS = 1_000
"""A partition is idle after this many events per partition without one of its own."""
MAX_PARTITIONS = 1024


class SlowestClock:
    def __init__(self) -> None:
        self.now_ms = 0
        self._count = 0
        # Ordered by last event: (event count then, events seen, clock).
        self._partitions: dict[str, tuple[int, int, EventClock]] = {}

    def see(self, time_ms: int, partition: str = "") -> int:
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
            name, (last_count, _, _) = next(iter(self._partitions.items()))
            silent = last_count < self._count - SILENT_EVENTS * len(self._partitions)
            if not silent and len(self._partitions) <= MAX_PARTITIONS:
                return
            del self._partitions[name]

    def state(self) -> list[Any]:
        partitions = [
            [name, last_count, seen, c.state()] for name, (last_count, seen, c) in self._partitions.items()
        ]
        return [self.now_ms, self._count, partitions]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> SlowestClock:
        self = cls()
        self.now_ms, self._count, partitions = state
        for name, last_count, seen, kept in partitions:
            self._partitions[name] = (last_count, seen, EventClock.restore(kept))
        return self
