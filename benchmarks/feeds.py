"""Local servers that speak the feeds' protocols and drop connections at seeded random places."""

from __future__ import annotations

import asyncio
import math
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson
from aiohttp import WSMsgType, web

from forebay.connectors.generator.posts import post, topic_of

EVENTS_PATH = "/stream"
SUBSCRIBE_PATH = "/subscribe"
SECOND_US = 1_000_000


@dataclass
class Drops:
    """Cuts connections after a random number of records, in one of several ways."""

    seed: int = 0
    every: int = 25
    refuse: float = 0.2
    dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def after(self) -> int:
        return self.dice.randrange(1, 2 * self.every)

    def refused(self) -> bool:
        return self.dice.random() < self.refuse


@dataclass
class FeedServer:
    """Serves `records` (JSON objects) by both protocols from any cursor; `drops` cuts connections
    (None: never). `cursors` and `authorizations` record what clients sent."""

    records: Sequence[dict[str, object]]
    drops: Drops | None = None
    inclusive: bool = False
    first_us: int = 1_700_000_000_000_000
    cursors: list[str | None] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    host: str = "127.0.0.1"
    port: int = 0

    @property
    def events_url(self) -> str:
        return f"http://{self.host}:{self.port}{EVENTS_PATH}"

    @property
    def subscribe_url(self) -> str:
        return f"ws://{self.host}:{self.port}{SUBSCRIBE_PATH}"

    def message(self, number: int) -> bytes:
        return orjson.dumps({**self.records[number], "time_us": self.first_us + SECOND_US * number})

    def event(self, number: int) -> bytes:
        """The data of event `number`; every fifth one is sent as two lines."""
        data = orjson.dumps(self.records[number])
        if number % 5 or b"," not in data:
            return data
        # A JSON object may be split after a comma: the line end there is white space.
        first, second = data.split(b",", 1)
        return first + b",\n" + second

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get(EVENTS_PATH, self._events)
        app.router.add_get(SUBSCRIBE_PATH, self._subscribe)
        return app

    async def _events(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID")
        self.cursors.append(last)
        self.authorizations.append(request.headers.get("Authorization"))
        if self.drops is not None and self.drops.refused():
            return web.Response(status=503)
        start = 0 if last is None else orjson.loads(last)[0]["offset"] + (0 if self.inclusive else 1)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b":ok\nretry: 10\n\n")
        left = None if self.drops is None else self.drops.after()
        for number in range(start, len(self.records)):
            text = self._event_text(number)
            if left is not None and left <= 0:
                # In the middle of an event: its first half must not count.
                await response.write(text[: len(text) // 2])
                _cut(request)
                return response
            await response.write(text)
            left = None if left is None else left - 1
        await asyncio.Event().wait()
        return response

    def _event_text(self, number: int) -> bytes:
        ident = orjson.dumps([{"topic": "changes", "partition": 0, "offset": number}])
        if number % 5:
            return b"event: message\nid: " + ident + b"\ndata: " + self.event(number) + b"\n\n"
        lines = [
            b": a comment",
            b"id: " + ident,
            *(b"data: " + line for line in self.event(number).split(b"\n")),
        ]
        return b"\r\n".join([*lines, b"", b""])

    async def _subscribe(self, request: web.Request) -> web.StreamResponse:
        cursor = request.query.get("cursor")
        self.cursors.append(cursor)
        self.authorizations.append(request.headers.get("Authorization"))
        if self.drops is not None and self.drops.refused():
            return web.Response(status=503)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        left = None if self.drops is None else self.drops.after()
        for number in range(self._from(cursor), len(self.records)):
            if left is not None and left <= 0:
                _cut(request)
                return socket
            await socket.send_str(self.message(number).decode())
            left = None if left is None else left - 1
        while (await socket.receive()).type not in {WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED}:
            continue
        return socket

    def _from(self, cursor: str | None) -> int:
        if cursor is None:
            return 0
        after = int(cursor) - self.first_us
        return max(0, -(-after // SECOND_US) if self.inclusive else after // SECOND_US + 1)


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


@contextmanager
def serve(server: FeedServer) -> Iterator[FeedServer]:
    """Serve on a free local port, in a thread, during the block."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def main() -> None:
        runner = web.AppRunner(server.application(), shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, server.host, server.port)
        await site.start()
        server.port = runner.addresses[0][1]
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), name="feed server", daemon=True)
    thread.start()
    if not ready.wait(10):
        raise RuntimeError("the local feed server did not start")
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


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
