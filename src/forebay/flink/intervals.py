"""How often an operator polls for answers, and how long it may block its input."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

SET_BACK_MS = 1000
"""Smaller backward clock steps are ignored; shards wait that much longer."""


@dataclass(frozen=True, slots=True)
class PollInterval:
    """The period of the timer that wakes a shard.

    Each look costs a call into Python, and an answer waits for half a period on average. The period is a
    share of a call's current duration, within bounds: 1 ms for a scripted replica, 25 ms for a model that
    takes seconds and needs the processor itself. If answers wake their shard, it is `rescue_ms`, because a
    checkpoint holds no wakes.
    """

    share: float = 0.02
    least_ms: int = 1
    most_ms: int = 25
    idle_ms: int = 500
    rescue_ms: int = 1000

    def step_ms(self, call_s: float) -> int:
        return min(self.most_ms, max(self.least_ms, round(call_s * 1000 * self.share)))

    def next_ms(self, now_ms: int, call_s: float) -> int:
        """The next multiple of the period, so that all shards of a subtask wake together."""
        step_ms = self.step_ms(call_s)
        return (now_ms // step_ms + 1) * step_ms


ANSWERS = 256
FACTOR = 1.5
FIRST_S = 0.04
"""Assumed age of a spell that begins with an empty queue."""
LONGEST_S = 3600.0


class RoomWait:
    """The longest wait of an event if the queue is full: 1.5 times the mean time per answer.

    The mean is over the last answers of a busy spell, at least `ANSWERS` and four times the capacity, and
    includes the time since the last one. So two events are accepted while three are answered, and the queue
    shrinks; without answers, the wait is a share of the outage, and the queue grows with its logarithm. The
    first waits of a spell are shorter; after a restart, the length of the queue shows how long the spell has
    lasted.
    """

    def __init__(self, capacity: int) -> None:
        self._times: deque[float] = deque(maxlen=max(ANSWERS, 4 * capacity))
        self._since_s: float | None = None
        self._finished = 0

    def most_s(self, now_s: float, finished: int, queued: int) -> float:
        """The longest wait if `finished` calls have ended so far and `queued` events wait for a slot.
        All slots are taken."""
        window = self._times.maxlen or 0
        if self._since_s is None:
            self._since_s, self._finished = now_s - _lasted_s(queued, window), finished
        self._times.extend([now_s] * min(window, finished - self._finished))
        self._finished = finished
        oldest_s = self._times[0] if len(self._times) == window else self._since_s
        return FACTOR * (now_s - oldest_s) / window

    def over(self) -> None:
        self._since_s = None
        self._times.clear()


def _lasted_s(queued: int, window: int) -> float:
    """The duration of a spell without answers that fills the queue: one event per `FACTOR` / `window` of its
    age."""
    return min(LONGEST_S, FIRST_S * math.exp(min(FACTOR * queued / window, 50.0)))
