"""HTTP connections with limits that uvicorn lacks with httptools: size, number and duration of headers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from forebay.gateway.asgi import PROVE
from forebay.gateway.connections import Connections, Handshakes, client_of
from forebay.gateway.refusal import INVALID, SERVER, error_body
from forebay.gateway.spec import LimitsSpec

LINGER_S = 1.0


MAX_IN_LINE = 8
MAX_PIPELINED = 64
"""Pipelined requests on a connection: one read can hold thousands, each of which takes kilobytes."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol within `limits`; `bounded` makes a subclass with them."""

    limits: LimitsSpec
    opened: Connections
    handshakes: Handshakes | None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = False
        self._trailing = False
        self._moved = False
        self._answering: Any = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._refused: tuple[int, str, str] | None = None
        self._error_sent = False
        self._proven = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.handshakes is not None:
            self.handshakes.end(transport.get_extra_info("socket").fileno())
        # asyncio sets it only if the listening socket names TCP; without it a first token waits 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Any unsent byte pauses writing, and so has a time limit, even after `close`. With a limit of 0
        # asyncio's TLS counts 0 bytes as too many.
        transport.set_write_buffer_limits(
            high=0 if transport.get_extra_info("sslcontext") is None else 1, low=0
        )
        if not self.opened.add(self, client_of(self.client[0] if self.client else ""), transport.abort):
            self._send_error(503, "gateway_full", "too many connections; try again later")
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.opened.remove(self)
        self._cancel_timer()
        self._forget_unread()
        super().connection_lost(exc)
        # uvicorn notifies the newest request only; the one being answered may be older.
        cycle = self._answering
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._forget_unread()
        limits = self.limits
        unread_s = limits.unread_s if self._proven else min(limits.unread_s, limits.header_s)
        self._unread_timer = self.loop.call_later(unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._forget_unread()
        super().resume_writing()
        self._rest()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._rest()

    def _rest(self) -> None:
        idle = self.cycle is not None and self.cycle.response_complete
        if self._proven and idle and not self.transport.get_write_buffer_size():
            self.opened.rest(self, self.transport.abort)

    def _forget_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = cycle
        cycle.scope[PROVE] = self._prove
        super()._start_asgi_task(cycle, app)

    def _prove(self) -> None:
        self._proven = True
        self.opened.prove(self)

    def data_received(self, data: bytes) -> None:
        if self._error_sent or self.transport.is_closing():
            return
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            # Bytes on an idle connection must become a request in time.
            self._await_head()
        self._moved = False
        super().data_received(data)
        if (self._in_head or self._trailing) and not (self._moved or self._error_sent):
            # The piece with the start of head or trailers is not counted: at most 256 KiB are read at once.
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.max_header_bytes:
                self._send_error(*self._too_large())

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(503, "gateway_full", f"more than {MAX_PIPELINED} requests wait on this connection")
        self._in_head = self._moved = True
        self._trailing = False
        self._head_bytes = 0
        super().on_message_begin()

    def on_chunk_header(self) -> None:
        # The parser would collect trailers without end.
        self._trailing = self._moved = True
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._trailing = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._trailing = False
        super().on_message_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # Trailers are not headers (RFC 9110, 6.5.1).
        super().on_header(name, value)
        if len(self.headers) > self.limits.max_headers:
            self._refuse(*self._too_large())

    def on_headers_complete(self) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url)
        if size > self.limits.max_header_bytes:
            self._refuse(*self._too_large())
        if self.parser.should_upgrade() and any(map(_announces_body, self.headers)):
            # After an upgrade the parser does not parse: the body would become the next request.
            text = "a request with a body must not request an upgrade; remove the header Upgrade"
            self._refuse(400, "invalid_http", text)
        self._in_head = False
        self._cancel_timer()
        super().on_headers_complete()
        if 0 < len(self.pipeline) <= MAX_IN_LINE:
            # Otherwise a hang-up would not be noticed.
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        self._send_error(*(self._refused or (400, "invalid_http", "this is not HTTP/1.1")))

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._refused = status, code, message
        raise ValueError(code)

    def _too_large(self) -> tuple[int, str, str]:
        limits = self.limits
        message = f"the headers exceed {limits.max_header_bytes} bytes or {limits.max_headers} in number"
        return 431, "headers_too_large", message

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.header_s, self._head_is_late)

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._in_head:
            self._send_error(
                408, "request_timeout", f"the headers did not arrive within {self.limits.header_s:g} s"
            )
        else:
            self.transport.close()

    def _send_error(self, status: int, code: str, message: str) -> None:
        """In mid-answer, only close. A client that still sends reads no answer, so it may finish for a
        moment.
        """
        self._cancel_timer()
        self._error_sent = True
        if self.cycle is None or self.cycle.response_complete:
            body = error_body(code, message, kind=SERVER if status >= 500 else INVALID)
            head = b"content-type: application/json\r\nconnection: close\r\n"
            length = b"content-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + length + body)
            if self.transport.can_write_eof():  # TLS cannot.
                self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()


def _announces_body(header: tuple[bytes, bytes]) -> bool:
    name, value = header
    return name == b"transfer-encoding" or (name == b"content-length" and bool(value.strip(b"0")))


def bounded(limits: LimitsSpec, handshakes: Handshakes | None = None) -> type[BoundedProtocol]:
    opened = Connections(limits.connections, limits.connections_per_client)
    return type("Bounded", (BoundedProtocol,), {"limits": limits, "opened": opened, "handshakes": handshakes})
