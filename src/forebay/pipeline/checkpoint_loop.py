"""Triggers a job's checkpoints: soon after there is something to commit, but seldom enough to be cheap."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from forebay.clock import Clock, SystemClock
from forebay.flink.job import JvmGone
from forebay.flink.job_activity import CheckpointEnd

log = logging.getLogger(__name__)

CPU_CLOCK = 2
"""Linux's CPUCLOCK_SCHED."""


class JobActivity(Protocol):
    """What a job has to commit, and its checkpoints. Methods raise `JvmGone` if its Flink is gone."""

    def await_answer(self, timeout_s: float) -> bool:
        """Block until there is a result to commit; False after `timeout_s`."""
        ...

    def take_answers(self) -> None: ...

    def take_reads(self) -> bool: ...

    def wake(self) -> None:
        """End another thread's wait, permanently."""
        ...

    def trigger(self) -> CheckpointEnd:
        """Block until a new checkpoint has ended."""
        ...


class CheckpointLoop:
    def __init__(
        self,
        activity: JobActivity,
        schedule: CheckpointSchedule,
        *,
        processor_s: Callable[[], float] = lambda: 0.0,
        clock: Clock | None = None,
    ) -> None:
        self._activity = activity
        self._schedule = schedule
        self._processor_s = processor_s
        self._clock = clock or SystemClock()
        self._closed = threading.Event()
        self._failure: Exception | None = None
        self._answered = self._read = self._wanted = False
        self.waits = 0
        """Grows with each answer that ends a wait or waits for the next checkpoint."""
        self._used_s = (self._clock.monotonic_s(), processor_s())
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self) -> None:
        """Request a checkpoint even if there is nothing to commit. Thread-safe."""
        self._wanted = True

    def check(self) -> None:
        """Raise the error that ended the thread: without it, nothing is committed."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._closed.set()
        try:
            self._activity.wake()
        except JvmGone:
            return
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self.step(self._closed.wait)
        except JvmGone as error:
            log.info("no more checkpoints: %s", error)
            if not self._closed.is_set():
                self._failure = error
        except Exception as error:
            self._failure = error

    def step(self, sleep: Callable[[float], object]) -> None:
        now_s = self._clock.monotonic_s()
        if self._answered or self._read:
            left_s = self._schedule.due_s(answered=self._answered) - now_s
            if left_s <= 0:
                self._checkpoint()
            elif self._answered:
                self.waits += 1
                sleep(left_s)
            else:
                self._answered = self._activity.await_answer(left_s)
                self.waits += self._answered
            return
        self._answered = self._activity.await_answer(self._schedule.most_s)
        self.waits += self._answered
        self._read = self._activity.take_reads() or self._wanted

    def _checkpoint(self) -> None:
        self._activity.take_answers()
        self._activity.take_reads()
        self._wanted = False
        begun_s, rate = self._clock.monotonic_s(), 0.0
        before_s, used_s = self._used_s[0], self._processor_s()
        if begun_s > before_s:
            rate = (used_s - self._used_s[1]) / (begun_s - before_s)
        end = self._activity.trigger()
        ended_s, now_used_s = self._clock.monotonic_s(), self._processor_s()
        self._used_s = ended_s, now_used_s
        match end:
            case CheckpointEnd.COMPLETE:
                own_s = now_used_s - used_s - rate * (ended_s - begun_s)
                self._schedule = self._schedule.completed(begun_s, ended_s, own_s)
                self._answered = self._read = False
            case CheckpointEnd.STARTING:
                self._schedule = self._schedule.postponed(ended_s)
            case CheckpointEnd.RESTARTING:
                # Answers since the last checkpoint are made again; the first of them ends the wait.
                self._schedule = self._schedule.restarted(ended_s)
                self._answered, self._read = False, True
            case CheckpointEnd.FAILED:
                self._schedule = self._schedule.failed(begun_s, ended_s)


def processor_s(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | CPU_CLOCK)
    except OSError:
        return 0.0


CORE_SHARE = 0.05
TIME_SHARE = 0.2
MIN_S = 0.2
REMEMBERED = 5
PAUSE_SHARE = 0.5
LONGEST_PAUSE_S = 0.5
LONGEST_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class CheckpointSchedule:
    """When to make checkpoints, so that they use only their share of time and CPU. Pure; times are monotonic.

    After each there is a pause in which sinks commit; otherwise the next one would contain the same
    transactions.
    """

    most_s: float
    begun_s: float
    least_s: float = MIN_S
    ended_s: float | None = None
    failures: int = 0
    postponements: int = 0
    not_before_s: float = -math.inf
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
        if self.ended_s is None:
            return max(self.begun_s if answered else self.begun_s + self.most_s, self.not_before_s)
        interval_s = self.interval_s if answered else self.most_s
        pause_s = min(LONGEST_PAUSE_S, PAUSE_SHARE * interval_s)
        return max(self.begun_s + interval_s, self.ended_s + pause_s, self.not_before_s)

    def completed(self, begun_s: float, ended_s: float, processor_s: float) -> CheckpointSchedule:
        after = replace(self, begun_s=begun_s, ended_s=ended_s, failures=0, postponements=0)
        if self.ended_s is None:
            return after
        durations_s = (*self.durations_s, ended_s - begun_s)[-REMEMBERED:]
        return replace(
            after, durations_s=durations_s, processor_s=(*self.processor_s, processor_s)[-REMEMBERED:]
        )

    def failed(self, begun_s: float, ended_s: float) -> CheckpointSchedule:
        return replace(self, begun_s=begun_s, ended_s=ended_s, failures=self.failures + 1)

    def postponed(self, now_s: float) -> CheckpointSchedule:
        """Flink counts an attempt while tasks start as a failed checkpoint."""
        wait_s = min(LONGEST_WAIT_S, MIN_S * 2.0 ** min(self.postponements, 60))
        return replace(self, postponements=self.postponements + 1, not_before_s=now_s + wait_s)

    def restarted(self, now_s: float) -> CheckpointSchedule:
        """As for a new job: the first answer is committed at once."""
        return replace(self, begun_s=now_s, ended_s=None, failures=0, postponements=0)
