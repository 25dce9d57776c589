"""Serves the page of a run on the loopback interface, on a thread of its own.

Requests need the token in the address, under a name of this machine (DNS rebinding). A browser receives the
versions of the page's parts as events and fetches changed ones. A browser that does not read is dropped.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import orjson
from aiohttp import web

from forebay.errors import SettingError

HOST = "127.0.0.1"
TOKEN_BYTES = 16
MAX_CONNECTIONS, BACKLOG = 64, 8
EVERY_S = 0.1
SEND_S = 5.0
BEAT_S = 15.0
OPEN_S, LAST_S, END_S = 1.0, 3.0, 3.0
MAX_SEARCH_CHARS = 200
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "forebay",
    "X-Content-Type-Options": "nosniff",
}
LOG = logging.getLogger("forebay")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Parts(Protocol):
    def page(self) -> str: ...

    def versions(self) -> dict[str, int]: ...

    def part(self, name: str, search: str) -> str: ...


class PageServer:
    def __init__(self, parts: Parts, port: int = 0) -> None:
        self._parts = parts
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        try:
            self._socket = socket.create_server((HOST, port), backlog=BACKLOG)
        except (OSError, OverflowError) as error:
            detail = getattr(error, "strerror", None) or str(error)
            raise SettingError(f"--ui: cannot listen at port {port}: {detail}; name another port") from None
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://{HOST}:{self.port}/{self._token}/"
        self._hosts = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._browsers = 0
        self._page_s = -math.inf
        self._opened = asyncio.Event()
        self._unread = asyncio.Event()
        self._unread.set()
        self._thread = threading.Thread(target=self._run, name="live-page", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.ident is None:
            self._socket.close()
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(OPEN_S + LAST_S + 2 * END_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            LOG.exception("the page of this run has stopped, because of an error; the run continues")
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        app = web.Application(middlewares=[self._checked], client_max_size=0)
        app.router.add_get("/{token}/", self._page)
        app.router.add_get("/{token}/events", self._events)
        app.router.add_get("/{token}/part/{name}", self._part)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=END_S)
        await runner.setup()
        serve = runner.server
        assert serve is not None

        def connect() -> asyncio.BaseProtocol:
            return serve() if len(serve.connections) < MAX_CONNECTIONS else _Refuse()

        server = await self._loop.create_server(connect, sock=self._socket, backlog=BACKLOG)
        try:
            await self._ended.wait()
            with suppress(asyncio.TimeoutError):
                # A browser that has just got the page opens its stream soon.
                left_s = self._page_s + OPEN_S - self._loop.time()
                await asyncio.wait_for(self._opened.wait(), max(0.0, left_s))
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._unread.wait(), LAST_S)
        finally:
            server.close()
            await runner.cleanup()

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.match_info.get("token", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._token.encode()) or request.host not in self._hosts:
            return web.Response(status=404, text="There is nothing here.", headers=HEADERS)
        return await handler(request)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        self._page_s = self._loop.time()
        self._opened.clear()
        return await _sent(request, self._parts.page())

    async def _part(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self._parts.versions():
            return web.Response(status=404, headers=HEADERS)
        return await _sent(
            request, self._parts.part(name, request.query.get("search", "")[:MAX_SEARCH_CHARS])
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await answer.prepare(request)
        sent: dict[str, int] = {}
        beat_s = self._loop.time()
        self._browsers += 1
        self._unread.clear()
        self._opened.set()
        try:
            while True:
                ends = self._ended.is_set()
                now = self._parts.versions()
                if now != sent or self._loop.time() - beat_s >= BEAT_S:
                    beat_s = self._loop.time()
                    await _write(answer, b"data: %b\n\n" % orjson.dumps(now))
                    sent = now
                if ends:
                    await _write(answer, b"event: end\ndata:\n\n")
                    # A browser closes the stream once it has fetched the last state.
                    await asyncio.sleep(LAST_S)
                    break
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), EVERY_S)
        except (asyncio.TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._browsers -= 1
            if not self._browsers:
                self._unread.set()
        return answer


class _Refuse(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _write(answer: web.StreamResponse, data: bytes) -> None:
    await asyncio.wait_for(answer.write(data), SEND_S)


async def _sent(request: web.Request, html: str) -> web.StreamResponse:
    answer = web.Response(text=html, content_type="text/html", headers=HEADERS)
    try:
        await asyncio.wait_for(_send(answer, request), SEND_S)
    except asyncio.TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return answer


async def _send(answer: web.Response, request: web.Request) -> None:
    await answer.prepare(request)
    await answer.write_eof()
