"""Learn how fast replicas are from their work while they are fully loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from forebay.fleet.autoscale.base import Amount, ReplicaSpeed, Tokens

ENOUGH_S = 20.0
"""Replica seconds after which measurements are used."""
MEMORY_S = 300.0
"""Replica seconds after which a measurement's weight is a third."""
MAX_FACTOR = 1000.0
"""Maximum factor between the learned and the assumed speed."""


@dataclass(frozen=True, slots=True)
class SpeedMemory:
    """Weighted replica seconds, and the work done in them, in assumed seconds."""

    spent_s: Amount
    work_s: Amount


_MEMORY: TypeAdapter[SpeedMemory] = TypeAdapter(SpeedMemory)


class LearnedSpeed:
    """A `Speed` that starts as assumed and is corrected by one factor: replica seconds over work done.

    Time counts while no replica has room for more, as all are busy then. Waiting events are not enough: a
    pipeline may be slower than its replicas. Other time gives a lower bound only, so it counts if more was
    done than the present factor allows. The ratio of a prompt token to an answer token stays as assumed.
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
        """Record work done in a number of replica seconds; `busy`: all replicas were busy throughout."""
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
        """Valid for the same assumed speed and model."""
        return asdict(SpeedMemory(self._spent_s, self._work_s))

    def recall(self, memory: Mapping[str, object]) -> None:
        """Raises `ValueError` for an unusable memory, and is then unchanged."""
        found = _MEMORY.validate_python(memory)
        self._spent_s, self._work_s = found.spent_s, found.work_s
        self._correct()

    def _learn(self, replicas_s: float, work_s: float) -> None:
        if not self._work_s and not work_s:
            # The first answers are still to come: their replicas have only just started.
            return
        kept = max(0.0, 1 - replicas_s / MEMORY_S)
        self._spent_s = self._spent_s * kept + replicas_s
        self._work_s = self._work_s * kept + work_s
        self._correct()

    def _correct(self) -> None:
        if self._spent_s >= ENOUGH_S and self._work_s > 0:
            self.factor = min(max(self._spent_s / self._work_s, 1 / MAX_FACTOR), MAX_FACTOR)
