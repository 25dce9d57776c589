"""Time in tests: a manual clock, and an event loop whose time is counted and not waited
for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from forebay.clock import SystemClock


class ManualClock:
    def __init__(self, monotonic_s: float = 1000.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_s = monotonic_s
        self._wall_ms = float(wall_ms)
        self.slept_s: list[float] = []

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def wall_ms(self) -> int:
        return int(self._wall_ms)

    def wall_us(self) -> int:
        return self.wall_ms() * 1000

    def advance(self, seconds: float) -> None:
        """Move both clocks. Raises `ValueError` for a negative step: monotonic time never goes back."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self._monotonic_s += seconds
        self._wall_ms += seconds * 1000

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back; monotonic time continues."""
        self._wall_ms += seconds * 1000

    def pause(self, seconds: float) -> None:
        """Replaces `time.sleep`; advances this clock at once."""
        self.slept_s.append(seconds)
        self.advance(seconds)

    async def sleep(self, seconds: float) -> None:
        """Replaces `asyncio.sleep` in the same way."""
        self.pause(seconds)


@dataclass(frozen=True)
class SetClock:
    """The system's clock with the wall clock `ahead_ms` ahead until the file `until` exists, then `behind_ms`
    behind; picklable."""

    ahead_ms: int
    until: Path | None = None
    behind_ms: int = 0

    def monotonic_s(self) -> float:
        return SystemClock().monotonic_s()

    def wall_ms(self) -> int:
        is_back = self.until is not None and self.until.exists()
        return SystemClock().wall_ms() + (-self.behind_ms if is_back else self.ahead_ms)

    def wall_us(self) -> int:
        return self.wall_ms() * 1000


T = TypeVar("T")
P = ParamSpec("P")
EPOCH_MS = 1_700_000_000_000


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time` stops while something runs, and jumps to the next timer if nothing does."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_NoWait(self))

    def time(self) -> float:
        return self._now_s

    def passed(self, seconds: float) -> None:
        self._now_s += seconds


class _NoWait(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and no timer is set: it would never end")
        self._loop.passed(timeout)
        return []


class LoopClock:
    """The `Clock` of a `VirtualLoop`; monotonic time begins at 0."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic_s(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000)

    def wall_us(self) -> int:
        return self.wall_ms() * 1000


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on its own `VirtualLoop`. Raises `RuntimeError` if it would never end."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_end(asyncio.all_tasks(loop)))
        loop.close()


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run each call of an async test with `run_virtual`."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs))

    return run


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
