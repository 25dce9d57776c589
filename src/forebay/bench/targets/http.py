"""A minimal HTTP/1.1 client: one request at a time on each kept connection, without tasks or queues between
the socket and the answer's reader.

A thousand streams a second are twenty thousand events a second. Here each costs one call from the event loop,
which also takes its time; httptools parses HTTP.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import httptools
from yarl import URL

from forebay.engine.client import CLOSE_GRACE_S, KEEPALIVE_S
from forebay.engine.failures import Redactor
from forebay.errors import EngineError, ProtocolViolation, Unreachable

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 256 << 20
CONNECT_TIMEOUT_S = 10.0
AT_A_TIME = 50
"""Connections opened concurrently before a load: fewer than a server's listen backlog."""


class Reader(Protocol):
    """Receives one answer. An `EngineError` that it raises ends the request.

    `done`: whether the answer is complete, whatever of the body is still to come.
    """

    done: bool

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Called with status and headers, names in lower case, before the body."""

    def body(self, data: bytes) -> None:
        """Called with the next bytes of the body, cut at chunks."""


class HttpServer:
    """A server and its connections, which are opened on demand and reused.

    Belongs to one event loop. Opens as many connections as there are concurrent requests: the caller limits
    them.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str], quote: Redactor) -> None:
        self.url = url
        self._quote = quote
        parsed = URL(url)
        assert parsed.host is not None
        assert parsed.port is not None
        self._host, self._port = parsed.host, parsed.port
        self._address = parsed.host
        self._tls = ssl.create_default_context() if parsed.scheme == "https" else None
        self._path = parsed.raw_path.rstrip("/")
        lines = [f"Host: {parsed.raw_authority}", *(f"{name}: {value}" for name, value in headers.items())]
        self._headers = "".join(f"\r\n{line}" for line in lines)
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()

    async def connect(self) -> None:
        """Open a first connection to whichever of the host's addresses answers. Later ones use the same
        address without another lookup. Raises `Unreachable`."""
        connection = await self._connect(self._host)
        self._address = connection.address or self._host
        self._release(connection)

    async def make_ready(self, connections: int) -> None:
        """Open connections until `connections` are idle.

        Failures are not reported: the request that needs the connection tries again.
        """
        for first in range(len(self._idle), connections, AT_A_TIME):
            count = min(AT_A_TIME, connections - first)
            made = await asyncio.gather(
                *(self._connect(self._address) for _ in range(count)), return_exceptions=True
            )
            for one in made:
                if isinstance(one, Connection):
                    self._release(one)
                elif not isinstance(one, Unreachable):
                    raise one

    def close(self) -> None:
        for connection in tuple(self._open):
            connection.abort()
        self._idle.clear()

    def post(self, path: str) -> bytes:
        """The head of a `POST` to `path`, up to the length of its body."""
        return self._begin("POST", path) + b"\r\nContent-Type: application/json\r\nContent-Length: "

    async def send(self, head: bytes, body: bytes, reader: Reader) -> None:
        """Send a `post`; returns when `reader` has the whole answer. Cancelling it closes the connection.

        Raises what `reader` raised, `Unreachable` if the connection could not be opened or broke too early,
        and `ProtocolViolation` if the answer is not HTTP or exceeds its limits.
        """
        await self._exchange(b"%b%d\r\n\r\n%b" % (head, len(body), body), reader)

    async def get(self, path: str, reader: Reader) -> None:
        await self._exchange(self._begin("GET", path) + b"\r\n\r\n", reader)

    def _begin(self, method: str, path: str) -> bytes:
        return f"{method} {self._path}{path} HTTP/1.1{self._headers}".encode("latin-1")

    async def _exchange(self, request: bytes, reader: Reader) -> None:
        connection = self._kept() or await self._connect(self._address)
        if not connection.usable:
            raise Unreachable(f"{self.url} closed the connection before it answered")
        try:
            await connection.exchange(request, reader)
        except BaseException:
            connection.abort()
            raise
        self._release(connection)

    def _kept(self) -> Connection | None:
        since_s = asyncio.get_running_loop().time() - KEEPALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since_s > since_s:
                return connection
            connection.abort()
        return None

    def _release(self, connection: Connection) -> None:
        if connection.usable:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()

    async def _connect(self, host: str) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await asyncio.wait_for(
                loop.create_connection(
                    lambda: Connection(self.url, self._quote, self._open),
                    host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                ),
                CONNECT_TIMEOUT_S,
            )
        except asyncio.TimeoutError:
            raise Unreachable(f"{self.url} took no connection within {CONNECT_TIMEOUT_S:g} s") from None
        except ssl.SSLError as error:
            reason = error.reason or str(error)
            raise Unreachable(f"{self.url}: no TLS connection ({self._quote(reason)})") from None
        except UnicodeError:
            raise Unreachable(f"{self.url}: its host is not a valid name") from None
        except OSError as error:
            number = error.errno
            reason = os.strerror(number) if number and number > 0 else error.strerror or str(error)
            raise Unreachable(f"{self.url}: no connection ({self._quote(reason)}); is it there?") from None
        return connection


class Connection(asyncio.Protocol):
    def __init__(self, url: str, quote: Redactor, all_open: set[Connection]) -> None:
        self._url = url
        self._quote = quote
        self._all_open = all_open
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reader: Reader | None = None
        self._ended: asyncio.Future[None] | None = None
        self._headers: dict[str, str] = {}
        self._head_bytes = self._body_bytes = 0
        self._in_body = False
        self._failure: BaseException | None = None
        self.address: str | None = None
        self.idle_since_s = 0.0
        self.usable = False
        """Whether another request may be sent on it."""

    def exchange(self, request: bytes, reader: Reader) -> asyncio.Future[None]:
        """Send `request`; the future ends when `reader` has the whole answer, or with an error."""
        assert self._transport is not None
        self._reader = reader
        self._headers = {}
        self._head_bytes = self._body_bytes = 0
        self._in_body = False
        self.usable = False
        ended = self._ended = self._transport_loop.create_future()
        self._transport.write(request)
        return ended

    def abort(self) -> None:
        self.usable = False
        self._ended = self._reader = None
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._transport_loop = asyncio.get_running_loop()
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else None
        self._all_open.add(self)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if self._ended is None:
            # Unsolicited bytes: this connection cannot be trusted any more.
            self.abort()
            return
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._failure is None and self._ended is not None:
                self._failure = ProtocolViolation(
                    f"{self._url} did not speak HTTP: {self._quote(str(error))}: "
                    f"{self._quote(data[:200].decode('utf-8', 'replace'))}"
                )
        if self._failure is None and not self._in_body and self._head_bytes > MAX_HEAD_BYTES:
            self._failure = ProtocolViolation(f"{self._url} sent headers of more than {MAX_HEAD_BYTES} bytes")
        if self._failure is not None:
            self._fail(self._failure)
        elif self._reader is not None and self._reader.done:
            # The answer is complete but its body is not: drop the connection unless that ends soon.
            self._transport_loop.call_later(CLOSE_GRACE_S, self._give_up, self._ended)

    def eof_received(self) -> None:
        if self._in_body and not {"content-length", "transfer-encoding"} & self._headers.keys():
            # The body ends with the connection.
            self._finish(usable=False)

    def connection_lost(self, error: Exception | None) -> None:
        self._all_open.discard(self)
        self.usable = False
        if self._ended is not None:
            said = f" ({self._quote(str(error))})" if error is not None else ""
            where = "before it answered" if not self._in_body else "in the middle of its answer"
            self._fail(Unreachable(f"{self._url} closed the connection {where}{said}"))
        self._transport = None

    # Called by httptools.

    def on_message_begin(self) -> None:
        if self._ended is None:
            # A second answer to one request.
            self.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._in_body = True
            self._call(lambda reader: reader.head(status, self._headers))

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > MAX_BODY_BYTES:
            self._failure = ProtocolViolation(
                f"{self._url} sent an answer of more than {MAX_BODY_BYTES} bytes"
            )
        elif self._failure is None and self._reader is not None:
            try:
                self._reader.body(data)
            except EngineError as error:
                self._failure = error

    def on_message_complete(self) -> None:
        if self._in_body and self._failure is None:
            self._finish(usable=self._parser.should_keep_alive())

    def _give_up(self, ended: asyncio.Future[None]) -> None:
        if ended is self._ended:
            self._finish(usable=False)

    def _call(self, tell: Callable[[Reader], None]) -> None:
        if self._failure is None and self._reader is not None:
            try:
                tell(self._reader)
            except EngineError as error:
                self._failure = error

    def _finish(self, *, usable: bool) -> None:
        ended, self._ended, self._reader = self._ended, None, None
        if ended is None:
            return
        self.usable = usable
        if not ended.done():
            ended.set_result(None)

    def _fail(self, error: BaseException) -> None:
        ended, self._ended, self._reader = self._ended, None, None
        self.usable = False
        if ended is not None and not ended.done():
            ended.set_exception(error)
