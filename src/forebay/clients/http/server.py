"""The connections to servers, opened on demand and reused."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from aiohappyeyeballs import AddrInfoType, start_connection
from yarl import URL

from forebay.clients.http.connection import Connection, HttpCall, Quote, StaleConnection
from forebay.clients.http.readers import AwaitedReader, CallOverdue, PulledAnswer
from forebay.errors import BadRequest, Unreachable

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 4.0
"""Less than vLLM's 5 s."""
ADDRESSES_S = 10.0
LOOKUP_S = 1.0
"""After this, or a temporary failure, the addresses of the last lookup are used."""
KNOWN_S = 600.0
"""How long addresses of a lookup may be used: later they may be somebody else's."""
NEXT_ADDRESS_S = 0.25
"""After this, the next address of the name is tried as well (RFC 8305)."""
AT_A_TIME = 50

TRUST = "set SSL_CERT_FILE to a PEM file with its authority"
OTHER_NAME = "use a name of its certificate in the URL, or have it issued for this one"
CERTIFICATE_FIXES = {
    9: "check the clocks of this machine and the server",
    10: "renew the server's certificate, or check the clock of this machine",
    **dict.fromkeys((18, 19, 20, 21), TRUST),
    62: OTHER_NAME,
    64: OTHER_NAME,
}
"""By OpenSSL's codes of failed verifications (`X509_V_ERR_…`)."""
NO_TLS = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"))
"""OpenSSL's reasons if the other side answers in plain text."""

Headers = Iterable[tuple[str, str]]


@cache
def tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class HttpServer:
    """As many connections as there are concurrent requests. Belongs to one event loop.

    Uses no proxy, follows no redirect, decodes no content. Calls raise `Unreachable` or `ProtocolViolation`.
    A request on an idle connection that the server has closed is sent again, unless `again=False`: the server
    may have seen it.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        quote: Quote,
        connect_s: float = CONNECT_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url
        self._quote = quote
        self._connect_s = connect_s
        parsed = URL(url)
        assert parsed.host is not None
        assert parsed.port is not None
        self._host, self._port = parsed.host, parsed.port
        self._tls = (tls or tls_context()) if parsed.scheme == "https" else None
        self._path = parsed.raw_path.rstrip("/")
        self._headers = dict(headers)
        self._names = frozenset(name.lower() for name in headers)
        self._host_line = f"\r\nHost: {parsed.raw_authority}"
        self._lines = self._host_line + "".join(map(_line, headers, headers.values()))
        self._idle: dict[Connection, None] = {}
        self._open: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._lookup: asyncio.Task[list[AddrInfoType]] | None = None
        self._looked_up_s = -math.inf
        self._known: list[AddrInfoType] = []
        self._known_s = -math.inf
        self._dialled = 0
        self._closed = False

    @property
    def connections(self) -> int:
        return len(self._open)

    async def post(
        self,
        path: str,
        body: bytes,
        reader: AwaitedReader,
        *,
        headers: Headers = (),
        silence_s: float = math.inf,
        total_s: float = math.inf,
        again: bool = True,
    ) -> None:
        """Return when `reader` has the whole answer. Cancelling closes the connection. Raises what `reader`
        raises, `SilentServer` and `CallOverdue`.
        """
        until_s = asyncio.get_running_loop().time() + total_s
        call = HttpCall(self._head("POST", path, headers, body), body, silence_s, until_s)
        await self._push(call, reader, again=again)

    async def get(
        self, path: str, reader: AwaitedReader, *, headers: Headers = (), total_s: float = math.inf
    ) -> None:
        until_s = asyncio.get_running_loop().time() + total_s
        call = HttpCall(self._head("GET", path, headers, None), until_s=until_s)
        await self._push(call, reader, again=True)

    async def open_post(
        self,
        path: str,
        body: bytes,
        *,
        headers: Headers = (),
        connect_s: float | None = None,
        again: bool = True,
    ) -> PulledAnswer:
        call = HttpCall(self._head("POST", path, headers, body), body)
        connection = self._kept()
        if connection is not None:
            try:
                return await self._pull(connection, call)
            except StaleConnection:
                if not again:
                    raise
        return await self._pull(await self._connect(connect_s=connect_s), call)

    async def make_ready(self, connections: int) -> None:
        for first in range(len(self._idle), connections, AT_A_TIME):
            count = min(AT_A_TIME, connections - first)
            made = await asyncio.gather(*(self._connect() for _ in range(count)), return_exceptions=True)
            for one in made:
                if isinstance(one, Connection):
                    self.put(one)
                elif not isinstance(one, Unreachable):
                    raise one

    async def connect(self) -> None:
        """Raises `Unreachable`."""
        self.put(await self._connect())

    async def close(self) -> None:
        self._closed = True
        for pending in (self._lookup, self._sweeper):
            if pending is not None:
                pending.cancel()
        for connection in tuple(self._open):
            connection.abort(self._closed_error())
        # The sockets are closed in the loop's next round.
        await asyncio.sleep(0)

    # Called by connections.

    def put(self, connection: Connection) -> None:
        if self._closed or not connection.is_open:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since_s = loop.time()
        self._idle[connection] = None
        if self._sweeper is None:
            self._sweeper = loop.call_later(KEEPALIVE_S, self._sweep)

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)
        if not self._idle and self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    # Helpers.

    def _head(self, method: str, path: str, headers: Headers, body: bytes | None) -> bytes:
        given = tuple(headers)
        lines, more = self._lines, "".join(_line(name, value) for name, value in given)
        replaced = self._names.intersection(name.lower() for name, _ in given)
        if replaced:
            kept = (own for own in self._headers if own.lower() not in replaced)
            lines = self._host_line + "".join(_line(own, self._headers[own]) for own in kept)
        if body is not None:
            more += f"\r\nContent-Length: {len(body)}"
        return f"{method} {self._path + path or '/'} HTTP/1.1{lines}{more}\r\n\r\n".encode("latin-1")

    async def _push(self, call: HttpCall, reader: AwaitedReader, *, again: bool) -> None:
        connection = self._kept()
        if connection is not None:
            try:
                await self._answered(connection, call, reader)
                return
            except StaleConnection:
                if not again:
                    raise
        await self._answered(await self._connect(call.until_s), call, reader)

    async def _answered(self, connection: Connection, call: HttpCall, reader: AwaitedReader) -> None:
        ended = reader.ended = asyncio.get_running_loop().create_future()
        connection.send(call, reader)
        try:
            await ended
        except BaseException:
            connection.drop(reader)
            raise

    async def _pull(self, connection: Connection, call: HttpCall) -> PulledAnswer:
        answer = PulledAnswer(connection.pause, lambda: connection.drop(answer))
        connection.send(call, answer)
        try:
            await answer.begin()
        except BaseException:
            answer.close()
            raise
        return answer

    def _kept(self) -> Connection | None:
        if not self._idle:
            return None
        since_s = asyncio.get_running_loop().time() - KEEPALIVE_S
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_open and connection.idle_since_s > since_s:
                return connection
            connection.abort()
        return None

    def _sweep(self) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        since_s = loop.time() - KEEPALIVE_S
        for connection in tuple(self._idle):
            if connection.idle_since_s > since_s:
                self._sweeper = loop.call_at(connection.idle_since_s + KEEPALIVE_S, self._sweep)
                return
            connection.abort()

    async def _connect(self, until_s: float = math.inf, connect_s: float | None = None) -> Connection:
        connect_s = self._connect_s if connect_s is None else connect_s
        left_s = until_s - asyncio.get_running_loop().time()
        try:
            connection = await _within(asyncio.ensure_future(self._dial()), min(connect_s, left_s))
        except asyncio.TimeoutError:
            if left_s < connect_s:
                raise CallOverdue(f"{self.url} did not accept a connection in time") from None
            if not self._known:
                raise Unreachable(f"{self.url}: its name was not resolved within {connect_s:g} s") from None
            raise Unreachable(f"{self.url} did not accept a connection within {connect_s:g} s") from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            fix = CERTIFICATE_FIXES.get(getattr(error, "verify_code", 0), "")
            if fix == TRUST and self._tls is not tls_context():
                fix = ""
            if error.reason in NO_TLS:
                fix = "the server does not use TLS: write http:// in its URL"
            shown = self._quote(reason.rstrip("."))
            raise Unreachable(f"{self.url}: no TLS connection ({shown}){fix and f'; {fix}'}") from None
        except UnicodeError:
            raise Unreachable(f"{self.url}: its host is not a valid name") from None
        except OSError as error:
            number = error.errno
            reason = os.strerror(number) if number and number > 0 else error.strerror or str(error)
            # asyncio's error for an end in a TLS handshake is empty.
            if not reason:
                raise Unreachable(f"{self.url}: it closed the connection in the TLS handshake") from None
            raise Unreachable(f"{self.url}: no connection ({self._quote(reason)}); is it there?") from None
        if self._closed:
            connection.abort()
            raise self._closed_error()
        return connection

    async def _dial(self) -> Connection:
        if self._closed:
            raise self._closed_error()
        loop = asyncio.get_running_loop()
        addresses = await self._addresses()
        # The name may belong to several servers: they get connections in turn.
        turn = self._dialled % len(addresses)
        self._dialled += 1
        sock = await start_connection(
            [*addresses[turn:], *addresses[:turn]], happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1
        )
        _, connection = await loop.create_connection(
            lambda: Connection(self, self.url, self._quote),
            sock=sock,
            ssl=self._tls,
            server_hostname=self._host if self._tls else None,
        )
        if connection.is_open:
            self._open.add(connection)
        return connection

    async def _addresses(self) -> list[AddrInfoType]:
        loop = asyncio.get_running_loop()
        lookup, now_s = self._lookup, loop.time()
        failed = lookup is not None and lookup.done() and (lookup.cancelled() or lookup.exception())
        old = lookup is not None and lookup.done() and now_s - self._looked_up_s > ADDRESSES_S
        if lookup is None or failed or old:
            found: Any = loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            lookup = self._lookup = loop.create_task(found)
            self._looked_up_s = now_s
            # If nobody waits for it any more, its error is not reported.
            lookup.add_done_callback(lambda task: task.cancelled() or task.exception())
        if now_s - self._known_s > KNOWN_S:
            self._known = []
        # Others may wait for it, too.
        await asyncio.wait((lookup,), timeout=LOOKUP_S if self._known else None)
        if not lookup.done():
            return self._known
        if lookup.cancelled():
            raise self._closed_error()
        error = lookup.exception()
        if not (self._known and isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN):
            self._known, self._known_s = lookup.result(), self._looked_up_s
        return self._known

    def _closed_error(self) -> Unreachable:
        return Unreachable(f"{self.url}: the client is closed")


async def _within(dial: asyncio.Future[Connection], limit_s: float) -> Connection:
    """`asyncio.wait_for` loses a cancellation that arrives together with the result (before Python 3.12)."""
    try:
        done, _ = await asyncio.wait((dial,), timeout=max(0.0, limit_s) if limit_s < math.inf else None)
    except asyncio.CancelledError:
        _give_up(dial)
        raise
    if not done:
        _give_up(dial)
        raise asyncio.TimeoutError
    return dial.result()


def _give_up(dial: asyncio.Future[Connection]) -> None:
    def end(dialled: asyncio.Future[Connection]) -> None:
        if not (dialled.cancelled() or dialled.exception()):
            dialled.result().abort()

    dial.cancel()
    dial.add_done_callback(end)


def _line(name: str, value: str) -> str:
    line = f"{name}: {value}"
    if not line.isprintable() or not line.isascii():
        raise BadRequest(f"the header {name[:80]!r} holds characters that HTTP does not allow")
    return "\r\n" + line


MANY = 256
"""With more servers, those without connections are forgotten: new replicas have new addresses."""


class HttpClient:
    def __init__(self, *, headers: Mapping[str, str], quote: Quote) -> None:
        self._headers = headers
        self._quote = quote
        self._servers: dict[str, HttpServer] = {}

    def server(self, url: str) -> HttpServer:
        found = self._servers.get(url)
        if found is None:
            if len(self._servers) >= MANY:
                self._servers = {key: one for key, one in self._servers.items() if one.connections}
            found = self._servers[url] = HttpServer(url, headers=self._headers, quote=self._quote)
        return found

    async def close(self) -> None:
        for server in self._servers.values():
            await server.close()
