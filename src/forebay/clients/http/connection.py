"""One HTTP/1.1 connection: sends a request, parses its answer, and limits everything around the body."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import httptools

from forebay.clients.http.readers import (
    AnswerHead,
    AwaitedReader,
    CallOverdue,
    EnoughRead,
    Reader,
    SilentServer,
)
from forebay.errors import ProtocolViolation, Unreachable
from forebay.untrusted_text import counted

MAX_INTERIM = 16
MAX_FRAMING_BYTES = 64 << 10
"""Bytes of heads before a body, or of chunk sizes, extensions and trailers in it, without a byte of the
body.
"""
PIECE_BYTES = 256 << 10
BODY_SILENCE_S = 10.0
"""The longest silence in a body whose length was sent: its server has all of it."""
RACE_S = 1.0
"""A connection that closes later than this after a request was not closed because it was idle."""

Quote = Callable[[str], str]


class HttpCall(NamedTuple):
    """`silence_s`: longest time until the first byte and between two reads. `until_s`: in the loop's time."""

    head: bytes
    body: bytes = b""
    silence_s: float = math.inf
    until_s: float = math.inf


class StaleConnection(Unreachable):
    """A reused connection was closed before a byte of the answer; the server may have seen the request."""


class ConnectionPool(Protocol):
    def put(self, connection: Connection) -> None: ...

    def lost(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """Belongs to one event loop; sends one request at a time."""

    def __init__(self, pool: ConnectionPool, url: str, quote: Quote) -> None:
        self._pool = pool
        self._url = url
        self._quote = quote
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reader: Reader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silence_s = self._until_s = math.inf
        self._sent_s = self._last_s = 0.0
        self._headers: list[tuple[bytes, bytes]] = []
        self._framing_bytes = self._interim = self._body_bytes = 0
        self._length: int | None = None
        self._in_body = self._sized = self._used = self._answered = False
        self._grace_s = self._grace_until_s = math.inf
        self._failure: Exception | None = None
        self._unsent = memoryview(b"")
        self._writable = True
        self.idle_since_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, call: HttpCall, reader: Reader) -> None:
        self._reader = reader
        self._sent_s = self._last_s = self._loop.time()
        self._headers = []
        self._framing_bytes = self._interim = self._body_bytes = 0
        self._length = None
        self._in_body = self._sized = self._answered = False
        self._grace_s = self._grace_until_s = math.inf
        self._silence_s, self._until_s = call.silence_s, call.until_s
        transport = self._transport
        if transport is None or transport.is_closing():
            self._end(self._closed_early(None))
            return
        self._arm()
        if len(call.body) <= PIECE_BYTES:
            transport.write(call.head + call.body)
        else:
            transport.write(call.head)
            self._unsent = memoryview(call.body)
            self._write_more()

    def drop(self, reader: Reader) -> None:
        if self._reader is reader:
            self.abort()

    def pause(self, paused: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    def abort(self, error: Exception | None = None) -> None:
        reader, self._reader = self._reader, None
        self._stop()
        if reader is not None and error is not None:
            reader.finished(error)

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._reader is None:
            # Nobody asked for it: this connection cannot be trusted any more.
            self._stop()
            return
        self._answered = True
        self._last_s = self._loop.time()
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._reader is None:
                self._stop()
                return
            if self._failure is None:
                detail = self._quote(f"{error or 'an upgrade'}: {data[:200].decode('utf-8', 'replace')}")
                self._failure = ProtocolViolation(f"{self._url} did not speak HTTP: {detail}")
        reader = self._reader
        if reader is None:
            return
        if self._failure is None and self._framing_bytes > MAX_FRAMING_BYTES:
            what = "without a part of its body" if self._in_body else "of headers"
            self._failure = self._violation(f"more than {MAX_FRAMING_BYTES} bytes {what}")
        if self._failure is not None:
            self._end(None if isinstance(self._failure, EnoughRead) else self._failure)
        elif reader.grace_s != self._grace_s:
            self._grace_s = reader.grace_s
            self._grace_until_s = self._last_s + self._grace_s
            self._arm()
        elif self._length is not None and (self._timer is None or self._due_s < self._timer.when()):
            self._arm()

    def eof_received(self) -> None:
        if self._reader is None or self._failure is not None:
            return
        if not self._in_body:
            self._end(self._closed_early(None))
        elif not self._sized:
            # The body ends with the connection.
            self._end(None)
        else:
            self._end(self._cut_off("closed the connection"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._reader is not None:
            if self._in_body:
                self._end(self._cut_off("closed the connection", error))
            else:
                self._end(self._closed_early(error))
        self._stop()
        self._pool.lost(self)
        # It refers to this connection, and Python's cycle collector may run late.
        del self._parser

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._write_more()

    # Called by httptools.

    def on_message_begin(self) -> None:
        if self._reader is None:
            # A second answer to one request.
            self._stop()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body and self._reader is not None:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        reader = self._reader
        if reader is None or self._failure is not None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = []
            self._interim += 1
            if self._interim > MAX_INTERIM:
                self._failure = self._violation(f"more than {MAX_INTERIM} interim answers")
            return
        head = AnswerHead(status, self._headers)
        self._in_body = True
        length = head.get("content-length")
        self._length = None if length is None else int(length)
        self._sized = length is not None or head.get("transfer-encoding") is not None
        try:
            reader.head(head)
        except Exception as error:
            self._failure = error

    def on_body(self, data: bytes) -> None:
        self._framing_bytes = 0
        self._body_bytes += len(data)
        reader = self._reader
        if reader is None or self._failure is not None or not self._in_body:
            return
        try:
            reader.body(data)
        except Exception as error:
            self._failure = error

    def on_message_complete(self) -> None:
        if not self._in_body or self._failure is not None or self._reader is None:
            return
        reader, self._reader = self._reader, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        transport = self._transport
        if transport is None or not self._parser.should_keep_alive() or transport.get_write_buffer_size():
            self._stop()
        else:
            self._used = True
            transport.resume_reading()
            self._pool.put(self)
        reader.finished(None)

    # Helpers.

    def _end(self, error: Exception | None) -> None:
        reader, self._reader = self._reader, None
        self._stop()
        if reader is not None:
            reader.finished(error)

    def _stop(self) -> None:
        self._reader = None
        self._unsent = memoryview(b"")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pool.lost(self)
        if self._transport is not None:
            self._transport.abort()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due_s = self._due_s
        self._timer = self._loop.call_at(due_s, self._check_time) if due_s < math.inf else None

    def _check_time(self) -> None:
        now_s = self._loop.time()
        self._timer = None
        if now_s >= self._grace_until_s:
            self._end(None)
        elif now_s >= self._until_s:
            self._end(CallOverdue(f"{self._url} did not finish its answer in time"))
        elif now_s >= self._last_s + self._most_silence_s:
            how = f"sent nothing for {self._most_silence_s:g} s"
            self._end(SilentServer(f"{self._url} {how}") if self._length is None else self._cut_off(how))
        else:
            self._arm()

    def _write_more(self) -> None:
        while self._unsent and self._writable and self._transport is not None:
            piece, self._unsent = self._unsent[:PIECE_BYTES], self._unsent[PIECE_BYTES:]
            self._transport.write(piece)

    def _violation(self, what: str) -> ProtocolViolation:
        return ProtocolViolation(f"{self._url} sent {what}")

    @property
    def _most_silence_s(self) -> float:
        # An answer that is pulled may be paused.
        sized = self._length is not None and isinstance(self._reader, AwaitedReader)
        return min(self._silence_s, BODY_SILENCE_S) if sized else self._silence_s

    @property
    def _due_s(self) -> float:
        return min(self._last_s + self._most_silence_s, self._until_s, self._grace_until_s)

    def _cut_off(self, how: str, error: Exception | None = None) -> Unreachable:
        detail = f" ({self._quote(str(error))})" if error is not None else ""
        promised = "" if self._length is None else f" of the {self._length:,} in its Content-Length"
        read = counted(self._body_bytes, "byte") + promised
        return Unreachable(f"{self._url} {how} in the middle of its answer, after {read}{detail}")

    def _closed_early(self, error: Exception | None) -> Unreachable:
        detail = f" ({self._quote(str(error))})" if error is not None else ""
        message = f"{self._url} closed the connection before it answered{detail}"
        raced = self._used and not self._answered and self._loop.time() - self._sent_s < RACE_S
        return (StaleConnection if raced else Unreachable)(message)
