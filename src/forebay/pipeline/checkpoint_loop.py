"""Triggers a job's checkpoints on a thread of its own, when one is due by its schedule."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from forebay.clock import Clock, SystemClock
from forebay.flink.job import JvmGone
from forebay.pipeline.checkpoint_schedule import CheckpointSchedule

log = logging.getLogger(__name__)

CPU_CLOCK = 2
"""Linux's CPUCLOCK_SCHED: a process's processor time in nanoseconds."""


class JobActivity(Protocol):
    """What a job has to commit, and its checkpoints. Methods raise `JvmGone` if its Flink is gone."""

    def await_answer(self, timeout_s: float) -> bool:
        """Block until there is a result to commit; False after `timeout_s`."""
        ...

    def take_answers(self) -> None:
        """Forget the results that the next checkpoint commits."""
        ...

    def take_reads(self) -> bool:
        """Whether events were read since the last call."""
        ...

    def wake(self) -> None:
        """End the wait of another thread, for good."""
        ...

    def trigger(self) -> bool:
        """Block until a new checkpoint has ended; return whether it is complete."""
        ...


class CheckpointLoop:
    """Checkpoints a job from `start` until `close`, or until its Flink is gone."""

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
        self._used_s = (self._clock.monotonic_s(), processor_s())
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self) -> None:
        """Make a checkpoint even if nothing happens; any thread."""
        self._wanted = True

    def check(self) -> None:
        """Raise what has ended the thread, if anything: without it, nothing is committed."""
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
        """Wait for something to commit, or until the checkpoint for it is due, or trigger it."""
        now_s = self._clock.monotonic_s()
        if self._answered or self._read:
            left_s = self._schedule.due_s(answered=self._answered) - now_s
            if left_s <= 0:
                self._checkpoint()
            elif self._answered:
                sleep(left_s)
            else:
                self._answered = self._activity.await_answer(left_s)
            return
        self._answered = self._activity.await_answer(self._schedule.most_s)
        self._read = self._activity.take_reads() or self._wanted

    def _checkpoint(self) -> None:
        self._activity.take_answers()
        self._activity.take_reads()
        self._wanted = False
        begun_s, rate = self._clock.monotonic_s(), 0.0
        before_s, used_s = self._used_s[0], self._processor_s()
        if begun_s > before_s:
            rate = (used_s - self._used_s[1]) / (begun_s - before_s)
        complete = self._activity.trigger()
        ended_s, now_used_s = self._clock.monotonic_s(), self._processor_s()
        self._used_s = ended_s, now_used_s
        if complete:
            own_s = now_used_s - used_s - rate * (ended_s - begun_s)
            self._schedule = self._schedule.completed(begun_s, ended_s, own_s)
            self._answered = self._read = False
        else:
            self._schedule = self._schedule.failed(begun_s, ended_s)


def processor_s(pid: int) -> float:
    """The processor time that a process has used; 0 if it is gone, or on other systems than Linux."""
    try:
        return time.clock_gettime((~pid << 3) | CPU_CLOCK)
    except OSError:
        return 0.0
