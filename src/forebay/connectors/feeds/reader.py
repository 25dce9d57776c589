"""A feed read on a thread of its own, into a bounded queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from forebay.connectors.feeds.feed import Feed, Received
from forebay.errors import ForebayError
from forebay.thread_names import name_thread


@dataclass(frozen=True, slots=True)
class _End:
    """Stands behind the last record: how the feed ended."""

    error: BaseException | None


class FeedReader:
    """Reads `feed` from `cursor` on, at most `room` records ahead; then it stops reading.

    Reading starts at once, on a daemon thread with an event loop. `take` and `close` belong to one thread.
    """

    def __init__(self, feed: Feed, cursor: str | None, *, room: int = 1000) -> None:
        self._feed = feed
        self._cursor = cursor
        self._room = room
        self._queue: SimpleQueue[Received | _End] = SimpleQueue()
        self._end: _End | None = None
        self._full = False
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._free = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"feed {feed.name}", daemon=True)
        self._thread.start()

    def take(self, wait_s: float = 0.0) -> Received | None:
        """The next record, in order; blocks until it is there, at most `wait_s`. None: it has not come.

        Behind the last record it raises what the feed raised, each time that it is called: a feed that fails
        is a fault.
        """
        if self._end is None:
            try:
                got = self._queue.get(timeout=wait_s) if wait_s > 0 else self._queue.get_nowait()
            except Empty:
                return None
            if self._full and self._queue.qsize() <= self._room // 2:
                self._full = False
                self._wake(self._free.set)
            if isinstance(got, Received):
                return got
            self._end = got
        if self._end.error is not None:
            raise self._end.error
        return None

    @property
    def exhausted(self) -> bool:
        """Whether the feed has ended without an error, and everything is taken."""
        return self._end is not None and self._end.error is None

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop reading and end the thread. Blocks until it is gone, at most `timeout_s`."""
        self._closing = True
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
        name_thread("forebay-feed")
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._read())
        error: BaseException | None = None
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            if not self._closing:
                error = ForebayError(f"{self._feed.name}: reading was cancelled by the feed itself")
        except BaseException as raised:
            error = raised
        finally:
            self._queue.put(_End(error))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _read(self) -> None:
        async for received in self._feed.read(self._cursor):
            while self._queue.qsize() >= self._room:
                self._free.clear()
                self._full = True
                # What was taken before the flag was up wakes nobody.
                if self._queue.qsize() >= self._room:
                    await self._free.wait()
            self._queue.put(received)
