"""Limits for the time and memory of one input, and for a client's wait without progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MAX_CPU_S = 5.0
MAX_BYTES = 256 << 20
STUCK_S = 5.0
TICK_S, MAX_OF_TICK_S = 0.25, 0.5
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Standstill:
    """Time without progress in which this process could have worked.

    A late poll means that the machine was busy: it counts as half a second, or as the processor time of this
    process since the previous poll. So a busy machine fails nothing, and a hang is found whether it waits or
    computes.
    """

    def __init__(self) -> None:
        self._stood_s = 0.0
        self._looked_s, self._computed_s = time.monotonic(), time.process_time()

    def progress(self) -> None:
        """Restart the time."""
        self._stood_s = 0.0

    def look(self) -> None:
        """Add the time since the last call; fails from 5 s on. Call it each `TICK_S`."""
        now_s, computed_s = time.monotonic(), time.process_time()
        passed_s, worked_s = now_s - self._looked_s, computed_s - self._computed_s
        self._stood_s += min(passed_s, max(MAX_OF_TICK_S, worked_s))
        self._looked_s, self._computed_s = now_s, computed_s
        assert self._stood_s < STUCK_S, f"nothing has come of it for {self._stood_s:.1f} s"


async def without_standstill(work: Callable[[Callable[[], None]], Coroutine[None, None, T]]) -> T:
    """The result of `work`, which must call its argument whenever it makes progress, at least every 5 s."""
    still = Standstill()
    task = asyncio.ensure_future(work(still.progress))
    try:
        while not (await asyncio.wait([task], timeout=TICK_S))[0]:
            still.look()
        return task.result()
    finally:
        task.cancel()


def without_standstill_on_thread(work: Callable[[], T]) -> T:
    """The result of `work`, run in its own thread as one step. Fails after 5 s."""
    still, executor = Standstill(), ThreadPoolExecutor(1)
    running = executor.submit(work)
    try:
        while not wait([running], timeout=TICK_S).done:
            still.look()
        return running.result()
    finally:
        executor.shutdown(wait=False)


@contextmanager
def within_bounds() -> Iterator[None]:
    """Fails if this thread computes for more than 5 s in the block, or the process takes 256 MiB more at a
    time.

    Measures processor time, so that a busy machine fails nothing.
    """
    before, begun_s = _peak_bytes(), time.thread_time()
    try:
        yield
    finally:
        spent_s, more = time.thread_time() - begun_s, _peak_bytes(reset=False) - before
    assert spent_s < MAX_CPU_S, f"it took {spent_s:.1f} s of the processor"
    assert more < MAX_BYTES, f"it took {more >> 20} MiB more"


def _peak_bytes(*, reset: bool = True) -> int:
    """Peak memory of the process since the last reset; 0 if the system does not report it."""
    try:
        if reset:
            CLEAR.write_text("5")
        status = STATUS.read_text()
    except OSError:
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) << 10
