"""What a fleet may spend on requests that failed there: a share of what succeeds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SHARE = 0.2
"""Calls that may be repeated for each one that succeeds."""
FIRST, MOST = 32.0, 128.0
"""Repeats that are allowed before anything has succeeded, and that may be saved up."""
ALWAYS = 3
"""Repeats at a time that are allowed though nothing is left: an outage has to end some time."""


class RetryBudget:
    """Bounds calls that repeat a failed one, over all requests of a fleet. Belongs to one event loop.

    Each is paid for by what has succeeded. One that cannot be waits, in order, until no request waits for its
    first call (`idle`): repeats must not keep others out, but where there are no others they harm nobody.
    """

    def __init__(self, idle: Callable[[], bool]) -> None:
        self._idle = idle
        self._left = FIRST
        self._free = ALWAYS
        self._waiting: deque[asyncio.Future[bool]] = deque()

    def succeeded(self) -> None:
        """A call succeeded."""
        self._left = min(self._left + SHARE, MOST)
        self.wake()

    @asynccontextmanager
    async def repeat(self, left_s: float) -> AsyncIterator[bool]:
        """While a call is repeated; waits for its turn. Gives False where it did not come within `left_s`."""
        paid = await self._turn(left_s)
        try:
            yield paid is not None
        finally:
            if paid is False:
                self._free += 1
                self.wake()

    async def _turn(self, left_s: float) -> bool | None:
        """Whether it was paid for, or is one of those that always may be; None where its time is over."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self.wake()
        if turn.done():
            return turn.result()
        try:
            await asyncio.wait((turn,), timeout=None if left_s == float("inf") else max(0.0, left_s))
            return turn.result() if turn.done() else None
        except BaseException:
            if turn.done() and not turn.result():
                self._free += 1
                self.wake()
            raise
        finally:
            if not turn.done():
                turn.cancel()

    def wake(self) -> None:
        """Something has changed: let those go on whose turn it is."""
        while self._waiting:
            turn = self._waiting[0]
            if turn.done():
                # Its time was over.
                self._waiting.popleft()
                continue
            if self._left >= 1:
                self._left -= 1
                paid = True
            elif self._free:
                self._free -= 1
                paid = False
            elif self._idle():
                paid = True
            else:
                return
            self._waiting.popleft()
            turn.set_result(paid)
            if self._left < 1 and not self._free:
                # One at a time, so that it is seen whether there is room for another.
                return
