"""A feed read on a thread of its own, into a bounded queue."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from forebay.connectors.feed import Feed, Received


class FeedReader:
    """Reads `feed` from `cursor` on, at most `room` records ahead; then it stops reading.

    Reading starts at once, on a daemon thread with an event loop. `take` and `close` belong to one thread.
    """

    def __init__(self, feed: Feed, cursor: str | None, *, room: int = 1000) -> None:
        self._feed = feed
        self._cursor = cursor
        self._room = room
        self._queue: deque[Received] = deque()
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._free = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"feed {feed.name}", daemon=True)
        self._thread.start()

    def take(self, most: int) -> list[Received]:
        """Up to `most` records that have arrived, in order; never blocks.

        Raises what the feed raised, once the records before it are taken: a feed that fails is a fault.
        """
        taken: list[Received] = []
        while len(taken) < most:
            try:
                taken.append(self._queue.popleft())
            except IndexError:
                break
        if taken:
            self._wake(self._free.set)
        elif self._ended.is_set() and not self._queue and self._error is not None:
            raise self._error
        return taken

    @property
    def exhausted(self) -> bool:
        """Whether the feed has ended and everything is taken."""
        return self._ended.is_set() and not self._queue

    def wait(self, timeout_s: float) -> None:
        """Block until the feed has ended, at most `timeout_s`."""
        self._ended.wait(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop reading and end the thread. Blocks until it is gone, at most `timeout_s`."""
        self._wake(self._cancel)
        self._thread.join(timeout_s)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _wake(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # The loop is closed: the feed has ended.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._read())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _read(self) -> None:
        async for received in self._feed.read(self._cursor):
            while len(self._queue) >= self._room:
                self._free.clear()
                if len(self._queue) >= self._room:
                    await self._free.wait()
            self._queue.append(received)
