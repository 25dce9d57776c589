"""`python -m benchmarks.paced_feed`: server-sent events at a variable rate, in its own process."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable

import orjson
from aiohttp import web

from forebay.connectors.generator.posts import post, topic_of

POSTS = 1000
AT_ONCE = 100
"""Events per write, if the client takes as many as it can."""


class Pace:
    """When events are due, at a variable rate; initially 0."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._rate_per_s = 0.0
        self._since_s = now_s()
        self._given = 0
        self.changed = asyncio.Event()

    def set(self, rate_per_s: float) -> None:
        self._rate_per_s, self._since_s, self._given = rate_per_s, self._now_s(), 0
        self.changed.set()

    def take(self) -> int:
        """Take the events that are due; returns how many."""
        if math.isinf(self._rate_per_s):
            return AT_ONCE
        if self._rate_per_s == 0:
            return 0
        due = math.floor((self._now_s() - self._since_s) * self._rate_per_s) + 1 - self._given
        self._given += due
        return due

    def wait_s(self) -> float | None:
        """Seconds until the next event is due; None: never."""
        if self._rate_per_s == 0:
            return None
        return max(0.0, self._since_s + self._given / self._rate_per_s - self._now_s())


class PacedFeed:
    """Serves `/stream`: event N has the id N, and a client continues after the last id it names."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._posts = [orjson.dumps(post(0, number, topic_of(0, number))) for number in range(POSTS)]

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/stream", self._events)
        return app

    async def _events(self, request: web.Request) -> web.StreamResponse:
        number = int(request.headers.get("Last-Event-ID", -1)) + 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b":ok\n\n")
        while True:
            self._pace.changed.clear()
            due = self._pace.take()
            if due:
                await response.write(b"".join(map(self._event, range(number, number + due))))
                number += due
            # Yield even if more is due: this event loop also receives new rates.
            await asyncio.sleep(0)
            await self._wait()

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._pace.changed.wait(), self._pace.wait_s())
        except asyncio.TimeoutError:
            return

    def _event(self, number: int) -> bytes:
        return b"id: %d\ndata: %b\n\n" % (number, self._posts[number % POSTS])


async def main() -> None:
    pace = Pace()
    runner = web.AppRunner(PacedFeed(pace).application(), shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/stream", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        pace.set(float(line))
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
