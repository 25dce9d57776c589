"""Decides when a job's next checkpoint is due: soon after there is something to commit, and seldom enough to
be cheap. Pure: it receives what happened, and when.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

CORE_SHARE = 0.05
"""Share of a core that checkpoints may use."""
TIME_SHARE = 0.2
"""Share of the time that a checkpoint may be in progress. It delays no event, but a store has to bear it."""
MIN_S = 0.2
REMEMBERED = 5
PAUSE_SHARE = 0.5
LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class CheckpointSchedule:
    """A job's checkpoints so far; times are of a monotonic clock.

    Results wait until `interval_s` has passed since the last checkpoint began: by the shortest duration and
    the median processor time of the last few, checkpoints then keep to their shares; at least `least_s` and
    at most `most_s`. (The first one loads classes, and does not count; longer ones wait for other programs.)
    Events that were only read wait `most_s`. Each of `failures` in a row doubles the wait, up to `most_s`.
    After a checkpoint there is a pause in which sinks commit: before that, the next one would contain the
    same transactions.
    """

    most_s: float
    begun_s: float
    least_s: float = MIN_S
    ended_s: float | None = None
    failures: int = 0
    durations_s: tuple[float, ...] = ()
    processor_s: tuple[float, ...] = ()

    @property
    def interval_s(self) -> float:
        wanted_s = self.least_s
        if self.durations_s:
            wanted_s = max(
                wanted_s, min(self.durations_s) / TIME_SHARE, median(self.processor_s) / CORE_SHARE
            )
        return min(self.most_s, wanted_s * 2.0 ** min(self.failures, 60))

    def due_s(self, *, answered: bool) -> float:
        """When the next checkpoint is due: if results wait for it, or if events were only read."""
        if self.ended_s is None:
            return self.begun_s if answered else self.begun_s + self.most_s
        interval_s = self.interval_s if answered else self.most_s
        pause_s = min(LONGEST_PAUSE_S, PAUSE_SHARE * interval_s)
        return max(self.begun_s + interval_s, self.ended_s + pause_s)

    def completed(self, begun_s: float, ended_s: float, processor_s: float) -> CheckpointSchedule:
        """After a checkpoint that used `processor_s` of a core."""
        after = replace(self, begun_s=begun_s, ended_s=ended_s, failures=0)
        if self.ended_s is None:
            return after
        durations_s = (*self.durations_s, ended_s - begun_s)[-REMEMBERED:]
        return replace(
            after, durations_s=durations_s, processor_s=(*self.processor_s, processor_s)[-REMEMBERED:]
        )

    def failed(self, begun_s: float, ended_s: float) -> CheckpointSchedule:
        return replace(self, begun_s=begun_s, ended_s=ended_s, failures=self.failures + 1)
