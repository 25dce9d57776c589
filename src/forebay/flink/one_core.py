"""Keeps the threads that share Python's lock on one core, as long as that saves processor time.

Such threads take turns, so a second core gains them nothing; and to wake the next thread on another core
costs more than a short turn, above all in a virtual machine.
"""

from __future__ import annotations

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
"""With fewer, the threads calculate more than they take turns, and may need all cores for it."""
MIN_USED, MIN_USED_PINNED = 0.5, 0.25
FREE_CORE, CROWDED_CORE = 0.15, 0.35
"""A core is chosen if others use at most this share of it, and left if they use more than the second."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
GAIN = 0.9
SAME_RATE = 0.95
AGAIN_S = 300.0
FIRST_HOLD_S, MAX_HOLD_S = 30.0, 1800.0


@dataclass(frozen=True, slots=True)
class CoreSample:
    """A look's interval. `used`: cores that the threads used; `answers_per_s`: what they finished; `busy`:
    the share of each core that all processes used."""

    used: float
    answers_per_s: float
    busy: Mapping[int, float]

    @property
    def cost(self) -> float:
        """Processor seconds per answer."""
        return self.used / self.answers_per_s


class _Phase(Enum):
    FREE = 0
    TRIAL = 1
    PINNED = 2


class CoreChoice:
    """Which core, after each look: None for all of them.

    A core is tried for one look, and kept if an answer then costs at least a tenth less than in the look
    before, at no lower rate. It is compared again every `AGAIN_S`. After a trial that gained nothing, the
    next one waits, longer each time.
    """

    def __init__(self) -> None:
        self._phase = _Phase.FREE
        self._core: int | None = None
        self._free: CoreSample | None = None
        self._since_s = 0.0
        self._not_before_s = 0.0
        self._hold_s = FIRST_HOLD_S

    def next(self, now_s: float, sample: CoreSample) -> int | None:
        if self._core is None:
            self._try_one(now_s, sample)
        elif self._ends(now_s, sample, self._core):
            self._phase, self._core = _Phase.FREE, None
        elif self._phase is _Phase.TRIAL:
            self._phase, self._hold_s = _Phase.PINNED, FIRST_HOLD_S
        return self._core

    def _try_one(self, now_s: float, sample: CoreSample) -> None:
        if (
            now_s < self._not_before_s
            or sample.used < MIN_USED
            or sample.answers_per_s < MIN_ANSWERS_PER_S
            or len(sample.busy) < 2
        ):
            return
        # The threads' own use is taken as spread evenly.
        own = sample.used / len(sample.busy)
        core = min(sample.busy, key=sample.busy.__getitem__)
        if sample.busy[core] - own <= FREE_CORE:
            self._phase, self._core, self._free, self._since_s = _Phase.TRIAL, core, sample, now_s

    def _ends(self, now_s: float, sample: CoreSample, core: int) -> bool:
        if sample.used < MIN_USED_PINNED or sample.answers_per_s < MIN_ANSWERS_PER_S:
            return True
        crowded = sample.busy.get(core, 1.0) - sample.used > CROWDED_CORE
        before = self._free
        assert before is not None
        worse = self._phase is _Phase.TRIAL and (
            sample.cost > GAIN * before.cost or sample.answers_per_s < SAME_RATE * before.answers_per_s
        )
        if crowded or worse:
            self._not_before_s = now_s + self._hold_s
            self._hold_s = min(2 * self._hold_s, MAX_HOLD_S)
        return crowded or worse or now_s - self._since_s >= AGAIN_S


class OneCore:
    """The threads of this process that share the lock. Thread-safe. Does nothing without Linux's /proc."""

    def __init__(self, proc: Path = Path("/proc"), clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._tasks, self._stat = proc / "self/task", proc / "stat"
        self._lock = threading.Lock()
        self._all: set[int] = set()
        self._used_s: dict[int, float] = {}
        self._busy_s: dict[int, float] = {}
        self._choice = CoreChoice()
        self._core: int | None = None
        self._answers = 0
        self._looked_s = 0.0

    def join(self) -> None:
        """Count the calling thread among them, until it ends."""
        with self._lock, suppress(OSError, AttributeError):
            if not self._all:
                self._all = os.sched_getaffinity(os.getpid())
            thread = threading.get_native_id()
            self._used_s[thread] = self._thread_s(thread)
            if self._core is not None:
                os.sched_setaffinity(thread, {self._core})

    def look(self, answers: int) -> None:
        """Note `answers`, finished since the caller's last look, and choose again if it is time."""
        with self._lock, suppress(OSError):
            self._answers += answers
            now_s = self._clock.monotonic_s()
            elapsed_s = now_s - self._looked_s
            if not self._used_s or elapsed_s < 0.9 * LOOK_S:
                return
            sample = CoreSample(self._used(elapsed_s), self._answers / elapsed_s, self._busy(elapsed_s))
            self._looked_s, self._answers = now_s, 0
            core = self._choice.next(now_s, sample)
            if core is not None or self._core is not None:
                self._place(core)

    def _place(self, core: int | None) -> None:
        """Also frees threads that one of these started: they begin on its core."""
        before, self._core = self._core, core
        for thread in map(int, os.listdir(self._tasks)):
            with suppress(ProcessLookupError):
                if thread in self._used_s:
                    os.sched_setaffinity(thread, self._all if core is None else {core})
                elif before is not None and os.sched_getaffinity(thread) == {before}:
                    os.sched_setaffinity(thread, self._all)

    def _used(self, elapsed_s: float) -> float:
        """Cores that all threads used since the last time; forgets those that have ended."""
        total_s = 0.0
        for thread, before_s in list(self._used_s.items()):
            try:
                self._used_s[thread] = self._thread_s(thread)
            except FileNotFoundError:
                del self._used_s[thread]
            else:
                total_s += self._used_s[thread] - before_s
        return total_s / elapsed_s

    def _thread_s(self, thread: int) -> float:
        return int((self._tasks / str(thread) / "schedstat").read_bytes().split()[0]) / 1e9

    def _busy(self, elapsed_s: float) -> dict[int, float]:
        """The share of each allowed core that was busy since the last time."""
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
"""Of this process, as the lock is."""
