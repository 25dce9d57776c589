"""Which offsets are behind answers that are committed: a decision, one look at the job after another."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

Offsets = TypeVar("Offsets")


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a job in one look: the two clocks of whoever looks, how often the job was restarted,
    the numbers of its newest checkpoint, of the newest completed one and of the newest completed one without
    records on their way between tasks, and the operators' `oldest_read_ms` (see
    `forebay.flink.metrics.OperatorLoad`)."""

    monotonic_s: float
    wall_ms: int
    restarts: int
    newest: int
    newest_done: int
    newest_clear: int
    oldest_read_ms: int


Steps = Generator[None, Sight, Sight]


class OffsetSettlement(Generic[Offsets]):
    """Finds offsets that may be committed for others to see: all records before them have committed answers.

    Flink commits what it has read when a checkpoint completes; the requests that are in flight then rest in
    that checkpoint, and their answers come later. So, from the look that found those offsets:

    1. A checkpoint completes that was triggered after it: every record before the offsets is in the hands of
       the operators, or answered, or, as checkpoints are unaligned, on its way to an operator that holds
       older ones. With `many_readers` those may as well be younger ones of another reader, so the checkpoint
       must be without records on their way. Metrics that are `metrics_s` younger know of what is held.
    2. By such metrics, nothing is awaited that was read before that look: all those answers have left. (The
       clocks of two machines may differ by `skew_ms`.)
    3. A checkpoint completes that was triggered after that: those answers are in it. One more completes,
       and before it began the sinks have committed them.

    A restart of the job in between takes answers back, and it begins anew.
    """

    def __init__(self, metrics_s: float, skew_ms: int = 0, *, many_readers: bool = False) -> None:
        self._metrics_s = metrics_s
        self._skew_ms = skew_ms
        self._many_readers = many_readers
        self._steps: Steps | None = None
        self._restarts = 0
        self._offsets: Offsets | None = None
        self._settled: Offsets | None = None

    def look(self, sight: Sight, read: Offsets) -> Offsets | None:
        """Offsets that have just settled, else None. `read`: those that Flink has committed."""
        if self._steps is None or sight.restarts != self._restarts:
            self._steps, self._restarts = None, sight.restarts
            self._offsets = read
            if self._offsets != self._settled:
                self._steps = self._settles(sight.monotonic_s, sight.wall_ms)
                next(self._steps)
            return None
        try:
            self._steps.send(sight)
            return None
        except StopIteration:
            self._steps, self._settled = None, self._offsets
            return self._settled

    def _settles(self, found_s: float, read_ms: int) -> Steps:
        # What Flink tells of its checkpoints may be as old as its metrics: a checkpoint that began before
        # is not to be mistaken for a later one.
        before = yield from _until(lambda now: now.monotonic_s >= found_s + self._metrics_s)
        passed = yield from _until(lambda now: self._passed(now) > before.newest)
        known_s = passed.monotonic_s + self._metrics_s
        first_ms = read_ms + self._skew_ms
        answered = yield from _until(lambda now: now.monotonic_s >= known_s and now.oldest_read_ms > first_ms)
        answered_s = answered.monotonic_s + self._metrics_s
        before = yield from _until(lambda now: now.monotonic_s >= answered_s)
        held = yield from _until(lambda now: now.newest_done > before.newest)
        return (yield from _until(lambda now: now.newest_done > held.newest_done))

    def _passed(self, now: Sight) -> int:
        return now.newest_clear if self._many_readers else now.newest_done


def _until(holds: Callable[[Sight], bool]) -> Steps:
    while not holds(now := (yield)):
        pass
    return now
