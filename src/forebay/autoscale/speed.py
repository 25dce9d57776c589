"""How fast replicas are, learned from what they get done while they have enough to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from forebay.autoscale.base import Amount, ReplicaSpeed, Tokens

ENOUGH_S = 20.0
"""Seconds of replicas' time after which what was seen is believed."""
MEMORY_S = 300.0
"""Seconds of replicas' time after which what was seen counts for a third."""
MOST = 1000.0
"""A replica is at most so many times faster or slower than assumed."""


@dataclass(frozen=True, slots=True)
class SpeedMemory:
    """Replicas' time that counts, and the work done in it, as long as it was assumed to take."""

    spent_s: Amount
    work_s: Amount


_MEMORY: TypeAdapter[SpeedMemory] = TypeAdapter(SpeedMemory)


class LearnedSpeed:
    """A `Speed` that begins as assumed and is corrected by one factor: replicas' time over work done.

    Time counts while no replica has room for more: all are busy then. That events wait is not enough, for a
    pipeline may be slower than its replicas. Of other time is only known that replicas are at least as fast:
    it counts where more was done than the present factor allows. The ratio of a prompt's token to an answer's
    stays as assumed.
    """

    def __init__(self, assumed: ReplicaSpeed) -> None:
        self._assumed = assumed
        self._spent_s = self._work_s = 0.0
        self._idle_s = self._idle_work_s = 0.0
        self.factor = 1.0

    @property
    def requests(self) -> int:
        return self._assumed.requests

    def work_s(self, tokens: Tokens) -> float:
        return self._assumed.work_s(tokens) * self.factor

    def add(self, done: Tokens, replicas_s: float, *, busy: bool) -> None:
        """So much was done in so many seconds of replicas' time; whether they were all busy throughout."""
        if not replicas_s > 0:
            return
        work_s = self._assumed.work_s(done)
        if busy:
            self._learn(replicas_s, work_s)
            return
        self._idle_s += replicas_s
        self._idle_work_s += work_s
        if self._idle_s >= ENOUGH_S:
            if self._idle_work_s * self.factor > self._idle_s:
                self._learn(self._idle_s, self._idle_work_s)
            self._idle_s = self._idle_work_s = 0.0

    def remembers(self) -> Mapping[str, object]:
        """What outlives a restart, for the same assumed speed and the same model."""
        return asdict(SpeedMemory(self._spent_s, self._work_s))

    def recall(self, memory: Mapping[str, object]) -> None:
        """Go on with what was remembered. Raises `ValueError` where it is not that, and is then as it was."""
        found = _MEMORY.validate_python(memory)
        self._spent_s, self._work_s = found.spent_s, found.work_s
        self._correct()

    def _learn(self, replicas_s: float, work_s: float) -> None:
        if not self._work_s and not work_s:
            # The first answers are still to come: their replicas have only begun.
            return
        kept = max(0.0, 1 - replicas_s / MEMORY_S)
        self._spent_s = self._spent_s * kept + replicas_s
        self._work_s = self._work_s * kept + work_s
        self._correct()

    def _correct(self) -> None:
        if self._spent_s >= ENOUGH_S and self._work_s > 0:
            self.factor = min(max(self._spent_s / self._work_s, 1 / MOST), MOST)
