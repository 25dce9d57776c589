"""An event loop whose time is counted, not waited for: ten minutes of timers pass in a second.

Nothing on it may wait for the outside (sockets, threads, processes): it would never see it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
EPOCH_MS = 1_700_000_000_000


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time` stands still while something runs, and jumps to the next timer when nothing does."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_NoWait(self))

    def time(self) -> float:
        return self._now_s

    def passed(self, seconds: float) -> None:
        self._now_s += seconds


class _NoWait(selectors.DefaultSelector):
    """Passes time instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and no timer is set: it would wait for ever")
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


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a `VirtualLoop` of its own. Raises `RuntimeError` where it would wait for ever."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_end(asyncio.all_tasks(loop)))
        loop.close()


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
