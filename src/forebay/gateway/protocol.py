"""HTTP on one connection, with the bounds that uvicorn's protocol does not have itself.

uvicorn bounds what it buffers of a body and how long an idle connection is kept. With httptools it bounds
neither size nor number of headers nor how long they take, and what it says itself is plain text.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from forebay.gateway.refusal import INVALID, SERVER, error_body
from forebay.gateway.spec import LimitsSpec

LINGER_S = 1.0
"""How long a refused client may go on sending before the connection is cut."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol within `limits`; make a subclass that has them with `bounded`."""

    limits: LimitsSpec

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._refused: tuple[int, str, str] | None = None
        self._said = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does so only where the listening socket names TCP; without it a first token waits 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > self.limits.connections:
            self._say(503, "gateway_full", "too many connections; try again later")
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._said or self.transport.is_closing():
            return
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            # Whatever comes on an idle connection has to become a request in time.
            self._await_head()
        began_in_head = self._in_head
        super().data_received(data)
        if self._in_head and began_in_head:
            # The piece in which a head begins is not counted: at most 256 KiB are read at once.
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.max_header_bytes:
                self._say(*self._too_large())

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.limits.max_headers:
            self._refuse(*self._too_large())

    def on_headers_complete(self) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url)
        if size > self.limits.max_header_bytes:
            self._refuse(*self._too_large())
        self._in_head = False
        self._cancel_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._say(*(self._refused or (400, "invalid_http", "this is not HTTP/1.1")))

    def _refuse(self, status: int, code: str, message: str) -> None:
        """End parsing from within one of the parser's calls; `send_400_response` then says why."""
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
            self._say(408, "request_timeout", f"the headers did not come within {self.limits.header_s:g} s")
        else:
            self.transport.close()

    def _say(self, status: int, code: str, message: str) -> None:
        """Answer without the application and close; in mid-answer, just close.

        A client that still sends is let finish for a moment, or it would not read why.
        """
        self._cancel_timer()
        self._said = True
        if self.cycle is None or self.cycle.response_complete:
            body = error_body(code, message, kind=SERVER if status >= 500 else INVALID)
            head = b"content-type: application/json\r\nconnection: close\r\n"
            length = b"content-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + length + body)
            self.transport.write_eof()
            self.loop.call_later(LINGER_S, self.transport.close)
        else:
            self.transport.close()


def bounded(limits: LimitsSpec) -> type[BoundedProtocol]:
    """The protocol with these bounds, as uvicorn takes it."""
    return type("Bounded", (BoundedProtocol,), {"limits": limits})
