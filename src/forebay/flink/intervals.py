"""How often an operator looks for finished answers, and for how long it may block its input."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

SET_BACK_MS = 1000
"""By so much a clock that is set back makes shards wait longer than they should; more is noticed."""


@dataclass(frozen=True, slots=True)
class PollInterval:
    """The step of the timer that wakes a shard.

    Each look costs a trip into Python, and an answer waits for half a step on average. A step is a share of
    what a call takes at present, within bounds, so that it adds at most about that share to an event: 1 ms
    for a scripted replica, 25 ms for a model that takes seconds and needs the processor itself.

    Where an answer wakes its shard, the step is `rescue_ms`: a safety net, as no wake is in a checkpoint.
    """

    share: float = 0.02
    least_ms: int = 1
    most_ms: int = 25
    idle_ms: int = 500
    rescue_ms: int = 1000

    def step_ms(self, call_s: float) -> int:
        """Milliseconds between two looks, where calls take `call_s` seconds at present."""
        return min(self.most_ms, max(self.least_ms, round(call_s * 1000 * self.share)))

    def next_ms(self, now_ms: int, call_s: float) -> int:
        """When to look next: the next multiple of the step, so that all shards of a subtask wake at once."""
        step_ms = self.step_ms(call_s)
        return (now_ms // step_ms + 1) * step_ms


ANSWERS = 256
FACTOR = 1.5
FIRST_S = 0.04
"""How long a spell has lasted, as far as is known, when it begins with an empty queue."""
LONGEST_S = 3600.0


class RoomWait:
    """The longest wait of an event where the queue is full: one and a half times what an answer takes.

    That is the mean over the last answers of a busy spell, at least `ANSWERS` and four times the capacity,
    with the time since the last of them. So two events are let in while three are answered, and the queue
    gets shorter; where nothing is answered, the wait is a share of the outage, and what is queued grows with
    its logarithm. At the beginning of a spell the wait is shorter than that.

    By the same rule the queue tells how long a spell has lasted, as after a restart: it does not let in the
    many of a beginning once more.
    """

    def __init__(self, capacity: int) -> None:
        self._times: deque[float] = deque(maxlen=max(ANSWERS, 4 * capacity))
        self._since_s: float | None = None
        self._finished = 0

    def most_s(self, now_s: float, finished: int, queued: int) -> float:
        """The longest wait, where `finished` calls have ended up to now and `queued` events wait for a slot.
        There is no room at present."""
        window = self._times.maxlen or 0
        if self._since_s is None:
            self._since_s, self._finished = now_s - _lasted_s(queued, window), finished
        self._times.extend([now_s] * min(window, finished - self._finished))
        self._finished = finished
        oldest_s = self._times[0] if len(self._times) == window else self._since_s
        return FACTOR * (now_s - oldest_s) / window

    def over(self) -> None:
        """The spell is over: there was room."""
        self._since_s = None
        self._times.clear()


def _lasted_s(queued: int, window: int) -> float:
    """How long a spell without an answer lets in as many: one every `FACTOR` / `window` of its age."""
    return min(LONGEST_S, FIRST_S * math.exp(min(FACTOR * queued / window, 50.0)))
