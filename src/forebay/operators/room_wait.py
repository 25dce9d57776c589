"""How long an event is kept waiting for room: not so long that checkpoints suffer, not so short that all of a
stream piles up in state."""

from __future__ import annotations

from collections import deque

ANSWERS = 256
FACTOR = 1.5


class RoomWait:
    """The longest wait of an event where the queue is full: one and a half times what an answer takes.

    That is the mean over the last answers of a busy spell, at least `ANSWERS` and four times the capacity,
    with the time since the last of them. So two events are let in while three are answered, and the queue
    gets shorter; where nothing is answered, the wait is a share of the outage, and what is queued grows with
    its logarithm. At the beginning of a spell the wait is shorter than that.
    """

    def __init__(self, capacity: int) -> None:
        self._times: deque[float] = deque(maxlen=max(ANSWERS, 4 * capacity))
        self._since_s: float | None = None
        self._finished = 0

    def most_s(self, now_s: float, finished: int) -> float:
        """The longest wait, where `finished` calls have ended up to now. There is no room at present."""
        if self._since_s is None:
            self._since_s, self._finished = now_s, finished
        window = self._times.maxlen or 0
        self._times.extend([now_s] * min(window, finished - self._finished))
        self._finished = finished
        oldest_s = self._times[0] if len(self._times) == window else self._since_s
        return FACTOR * (now_s - oldest_s) / window

    def over(self) -> None:
        """The spell is over: there was room."""
        self._since_s = None
        self._times.clear()
