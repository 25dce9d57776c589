"""Keeps the threads that share Python's lock on one core, if that saves processor time.

Such threads take turns, so a second core does not help. To wake a thread on another core costs more than a
short turn, above all in a virtual machine.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from forebay.clock import Clock, SystemClock

LOOK_S = 1.0
MIN_ANSWERS_PER_S = 100.0
"""With fewer, the threads mostly calculate, and may need all cores for it."""
MIN_USED, MIN_USED_PINNED = 0.5, 0.25
FREE_CORE, CROWDED_CORE = 0.5, 0.6
"""A core is tried if others use at most the first share of it, and left above the second."""
FULL = 0.9
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
GAIN = 0.9
SAME_RATE = 0.95
AGAIN_S = 300.0
FIRST_HOLD_S, MAX_HOLD_S = 30.0, 1800.0


@dataclass(frozen=True, slots=True)
class CoreSample:
    used: float
    answers_per_s: float
    busy: Mapping[int, float]

    @property
    def cost(self) -> float:
        return self.used / self.answers_per_s

    def beats(self, free: CoreSample) -> bool:
        return self.cost <= GAIN * free.cost and self.answers_per_s >= SAME_RATE * free.answers_per_s


class _Phase(Enum):
    FREE = 0
    TRIAL = 1
    CHECK = 2
    PINNED = 3


class CoreChoice:
    """The core to use, after each sample; None means all cores.

    A core is tried for one sample. It is kept if an answer cost at least a tenth less than in the free
    samples before and after, at no lower rate: costs also fall while a job warms up. It is tried again every
    `AGAIN_S`, and once the threads fill it. After each trial without gain, the wait is longer.
    """

    def __init__(self) -> None:
        self._phase = _Phase.FREE
        self._core = -1
        self._before: CoreSample | None = None
        self._trial: CoreSample | None = None
        self._since_s = 0.0
        self._not_before_s = 0.0
        self._hold_s = FIRST_HOLD_S

    def next(self, now_s: float, sample: CoreSample) -> int | None:
        match self._phase:
            case _Phase.FREE:
                self._start_trial(now_s, sample)
            case _Phase.TRIAL:
                gained = self._before is not None and self._fits(sample) and sample.beats(self._before)
                self._trial = sample
                self._conclude(now_s, _Phase.CHECK if gained else None)
            case _Phase.CHECK:
                gained = self._trial is not None and _takes_turns(sample) and self._trial.beats(sample)
                self._since_s = now_s
                self._conclude(now_s, _Phase.PINNED if gained else None)
            case _Phase.PINNED:
                if not _takes_turns(sample, MIN_USED_PINNED) or self._is_due(now_s, sample):
                    self._phase = _Phase.FREE
                elif not self._fits(sample):
                    self._conclude(now_s, None)
        return self._core if self._phase in (_Phase.TRIAL, _Phase.PINNED) else None

    def _start_trial(self, now_s: float, sample: CoreSample) -> None:
        if now_s < self._not_before_s or not _takes_turns(sample) or len(sample.busy) < 2:
            return
        # The threads' own use is taken as spread evenly.
        own = sample.used / len(sample.busy)
        core = min(sample.busy, key=sample.busy.__getitem__)
        if sample.busy[core] - own <= FREE_CORE:
            self._phase, self._core, self._before = _Phase.TRIAL, core, sample

    def _fits(self, sample: CoreSample) -> bool:
        return (
            sample.answers_per_s > 0 and sample.busy.get(self._core, math.inf) - sample.used <= CROWDED_CORE
        )

    def _is_due(self, now_s: float, sample: CoreSample) -> bool:
        filled = self._trial is not None and sample.used > FULL >= self._trial.used
        return filled or now_s - self._since_s >= AGAIN_S

    def _conclude(self, now_s: float, phase: _Phase | None) -> None:
        if phase is None:
            self._not_before_s = now_s + self._hold_s
            self._hold_s = min(2 * self._hold_s, MAX_HOLD_S)
        elif phase is _Phase.PINNED:
            self._hold_s = FIRST_HOLD_S
        self._phase = phase or _Phase.FREE


def _takes_turns(sample: CoreSample, min_used: float = MIN_USED) -> bool:
    return sample.used >= min_used and sample.answers_per_s >= MIN_ANSWERS_PER_S


class OneCore:
    """The threads of this process that share the lock. Thread-safe. Does nothing without Linux's /proc.

    Only for threads that run no code of users: processes and thread pools started meanwhile would get one
    core.
    """

    def __init__(self, proc: Path = Path("/proc"), clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._tasks, self._stat = proc / "self/task", proc / "stat"
        self._lock = threading.Lock()
        self._all: set[int] = set()
        self._used_s: dict[int, float] = {}
        self._busy_s: dict[int, float] = {}
        self._choice = CoreChoice()
        self._core: int | None = None
        self._pools = 0
        self._answers = 0
        self._sampled_s = 0.0

    def join(self, *, pool: bool = False) -> None:
        """Include the calling thread until the last pool has left; a `pool` calls `leave`."""
        with self._lock, suppress(OSError, AttributeError):
            self._pools += pool
            if not self._all:
                self._all = os.sched_getaffinity(os.getpid())
            thread = threading.get_native_id()
            self._used_s[thread] = self._thread_s(thread)

    def leave(self) -> None:
        with self._lock:
            self._pools -= 1
            self._choice = CoreChoice()
            self._place(None)
            if not self._pools:
                self._used_s.clear()

    def look(self, answers: int) -> bool:
        """Note `answers`, finished since the last look, and choose again if due.

        True if the caller must look again in a second.
        """
        with self._lock:
            self._answers += answers
            with suppress(OSError):
                now_s = self._clock.monotonic_s()
                elapsed_s = now_s - self._sampled_s
                if self._used_s and elapsed_s >= 0.9 * LOOK_S:
                    rate = self._answers / elapsed_s
                    sample = CoreSample(self._used(elapsed_s), rate, self._busy(elapsed_s))
                    self._sampled_s, self._answers = now_s, 0
                    self._place(self._choice.next(now_s, sample))
            return answers > 0 or self._core is not None

    def _place(self, core: int | None) -> None:
        """Also frees threads that one of these started: they begin on its core."""
        before, self._core = self._core, core
        if before is None and core is None:
            return
        with suppress(OSError):
            for thread in map(int, os.listdir(self._tasks)):
                with suppress(ProcessLookupError):
                    if thread in self._used_s:
                        os.sched_setaffinity(thread, self._all if core is None else {core})
                    elif before is not None and os.sched_getaffinity(thread) == {before}:
                        os.sched_setaffinity(thread, self._all)

    def _used(self, elapsed_s: float) -> float:
        total_s = 0.0
        for thread, before_s in list(self._used_s.items()):
            try:
                self._used_s[thread] = self._thread_s(thread)
            except (FileNotFoundError, ProcessLookupError):
                del self._used_s[thread]
            else:
                total_s += self._used_s[thread] - before_s
        return total_s / elapsed_s

    def _thread_s(self, thread: int) -> float:
        return int((self._tasks / str(thread) / "schedstat").read_bytes().split()[0]) / 1e9

    def _busy(self, elapsed_s: float) -> dict[int, float]:
        shares = {}
        for line in self._stat.read_text().splitlines():
            name, *ticks = line.split()
            if name[:3] == "cpu" and name[3:].isdigit() and (core := int(name[3:])) in self._all:
                # proc_stat(5): the fourth and the fifth are idle time; guests' time is in the first two.
                busy_s = (sum(map(int, ticks[:8])) - int(ticks[3]) - int(ticks[4])) / TICKS_PER_S
                shares[core] = (busy_s - self._busy_s.get(core, busy_s)) / elapsed_s
                self._busy_s[core] = busy_s
        return shares


SHARED = OneCore()
