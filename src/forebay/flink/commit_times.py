"""The time from a result to its commit. Flink does not notify Python functions of completed checkpoints."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from forebay.clock import Clock
from forebay.flink.jvm_task import java_field, java_items, private_field, stream_task
from forebay.flink.latency import LatencyHistogram

if TYPE_CHECKING:
    from pyflink.datastream import RuntimeContext

log = logging.getLogger(__name__)

STEP_S, MOST_STEP_S = 0.001, 60.0
MAX_HELD = 512
SHARE = 0.05
LEAST_WAIT_S, MOST_WAIT_S = 0.05, 1.0
"""50 wakes a second took 2 % of a core."""
LOOK_S = 0.002
SLACK_S = 0.002
COMMITTER = "CommitterOperator"


class TaskCheckpoints(Protocol):
    def snapshotted(self) -> int:
        """The newest checkpoint that contains the task's state."""
        ...

    def committed(self) -> int:
        """The newest checkpoint that every sink has committed, retries included."""
        ...


@dataclass(slots=True)
class Held:
    after: int
    at_s: float
    count: int


class CommitTimes:
    """Measures the time from each result to its commit, in bounded memory. For the operator's thread.

    Results that leave within `LOOK_S` after a snapshot may count as part of it. Results that a failure or the
    job's end overtakes are not counted.
    """

    def __init__(self, checkpoints: TaskCheckpoints, clock: Clock) -> None:
        self.latency = LatencyHistogram()
        self._checkpoints = checkpoints
        self._clock = clock
        self._unseen: list[Held] = []
        self._held: list[Held] = []
        self._step_s = STEP_S
        self._looked_s = self._wake_s = -math.inf
        self._snapshotted = 0

    def answered(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._unseen and now_s - self._unseen[-1].at_s < self._step_s:
            self._unseen[-1].count += 1
        else:
            self._unseen.append(Held(0, now_s, 1))

    @property
    def waiting(self) -> bool:
        return bool(self._held or self._unseen)

    def check_commits(self, wake_after: Callable[[float], object]) -> bool:
        """Whether the last pending result was committed; if some are pending, request another check."""
        committed = self.look()
        if (wait_s := self.wake_after_s()) is not None:
            wake_after(wait_s)
        return committed and not self.waiting

    def wake_after_s(self) -> float | None:
        """Seconds until `look` is due; None if nothing waits, or if a wake is due by then."""
        if not self.waiting:
            return None
        now_s = self._clock.monotonic_s()
        # The newest: for older results the same wait is a smaller share.
        newest = (self._unseen or self._held)[-1]
        wait_s = min(MOST_WAIT_S, max(LEAST_WAIT_S, SHARE * (now_s - newest.at_s)))
        if now_s < self._wake_s <= now_s + wait_s:
            return None
        self._wake_s = now_s + wait_s - SLACK_S
        return wait_s

    def look(self) -> bool:
        now_s = self._clock.monotonic_s()
        if not self.waiting:
            return False
        if now_s - self._looked_s < LOOK_S:
            # Not with the next look's: a snapshot until then contains them.
            self._hold(self._snapshotted)
            return False
        self._looked_s = now_s
        self._snapshotted = self._checkpoints.snapshotted()
        self._hold(self._snapshotted)
        committed = self._checkpoints.committed()
        done = 0
        for held in self._held:
            if held.after >= committed:
                break
            self.latency.add(now_s - held.at_s, held.count)
            done += 1
        del self._held[:done]
        if len(self._held) < MAX_HELD // 4:
            self._step_s = max(STEP_S, self._step_s / 2)
        return done > 0

    def _hold(self, snapshotted: int) -> None:
        for new in self._unseen:
            new.after = snapshotted
            last = self._held[-1] if self._held else None
            if last is not None and last.after == snapshotted and new.at_s - last.at_s < self._step_s:
                self._held[-1] = _joined(last, new)
            else:
                self._held.append(new)
        self._unseen.clear()
        while len(self._held) > MAX_HELD:
            self._step_s = min(MOST_STEP_S, 2 * self._step_s)
            pairs = zip(self._held[::2], [*self._held[1::2], None], strict=False)
            self._held = [first if second is None else _joined(first, second) for first, second in pairs]


def _joined(first: Held, second: Held) -> Held:
    count = first.count + second.count
    at_s = (first.at_s * first.count + second.at_s * second.count) / count
    return Held(second.after, at_s, count)


class FlinkTaskCheckpoints:
    """Reads private fields of Flink 2.3. Raises `LookupError` without them, or without a sink in the task.

    Flink sets the sink's field before it commits, but on the task's thread, so a call sees only completed
    commits. A failed commit fails the task.
    """

    def __init__(self, runtime_context: RuntimeContext) -> None:
        task = stream_task(runtime_context)
        self._coordinator = java_field(task, "subtaskCheckpointCoordinator")
        self._snapshotted = private_field(self._coordinator, "lastCheckpointId")
        operators = [
            wrapper.getStreamOperator()
            for wrapper in java_items(java_field(task, "operatorChain").getAllOperators())
        ]
        self._sinks: list[tuple[Any, Any]] = [
            (private_field(operator, "lastCompletedCheckpointId"), operator)
            for operator in operators
            if operator.getClass().getSimpleName() == COMMITTER
        ]
        if not self._sinks:
            raise LookupError("the operator's task has no sink that commits")
        self._restored = self.committed()

    def snapshotted(self) -> int:
        # Flink's field lacks the restored checkpoint.
        return max(self._restored, int(self._snapshotted.get(self._coordinator)))

    def committed(self) -> int:
        return min(int(field.get(operator)) for field, operator in self._sinks)


def open_commit_times(runtime_context: RuntimeContext, clock: Clock) -> CommitTimes | None:
    if getattr(runtime_context, "_runtime_context", None) is None:
        return None
    try:
        return CommitTimes(FlinkTaskCheckpoints(runtime_context), clock)
    except Exception as error:
        log.info("the time from a result to its commit is not measured: %s", error)
        return None
