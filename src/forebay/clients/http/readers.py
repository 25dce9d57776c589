"""Readers of an answer: pushed as its bytes arrive, or pulled by the task that forwards it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay.errors import AttemptTimeout, ProtocolViolation

PAUSE_BYTES = 128 << 10
CLOSE_GRACE_S = 1.0
JSON = "application/json"
EVENT_STREAM = "text/event-stream"


class SilentServer(AttemptTimeout): ...


class CallOverdue(AttemptTimeout): ...


class EnoughRead(Exception):
    """Raised by a reader that needs no more: the answer counts as complete, and the connection is closed."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    status: int
    headers: Sequence[tuple[bytes, bytes]]

    def get(self, name: str) -> str | None:
        wanted = name.lower().encode("latin-1")
        for found, value in self.headers:
            if len(found) == len(wanted) and found.lower() == wanted:
                return value.decode("latin-1")
        return None

    @property
    def content_type(self) -> str:
        return (self.get("content-type") or "").partition(";")[0].strip().lower()

    @property
    def is_plain(self) -> bool:
        return (self.get("content-encoding") or "identity").strip().lower() == "identity"


def check_plain(head: AnswerHead, server: str) -> None:
    """Raise `ProtocolViolation` if the body is compressed."""
    if not head.is_plain:
        raise ProtocolViolation(
            f"{server} sent a compressed answer, which the request rules out (Accept-Encoding: identity): "
            "turn off compression in the server, or in the proxy before it"
        )


class Reader(Protocol):
    """An exception that it raises ends the call. `grace_s`: how long the end of the body may take from now
    on; infinite until the answer seems complete.
    """

    grace_s: float

    def head(self, head: AnswerHead) -> None: ...

    def body(self, data: bytes) -> None: ...

    def finished(self, error: Exception | None) -> None: ...


class AwaitedReader:
    __slots__ = ("ended", "grace_s")

    def __init__(self) -> None:
        self.grace_s = math.inf
        self.ended: asyncio.Future[None] | None = None

    def head(self, head: AnswerHead) -> None:
        raise NotImplementedError

    def body(self, data: bytes) -> None:
        raise NotImplementedError

    def finished(self, error: Exception | None) -> None:
        ended = self.ended
        if ended is None or ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)


class WholeAnswer(AwaitedReader):
    """Raises `ProtocolViolation` if a 200 has more than `max_bytes`; reads `max_error_bytes` of other
    answers.
    """

    __slots__ = ("_left", "_max_bytes", "_max_error_bytes", "_server", "data", "location", "status")

    def __init__(self, server: str, *, max_bytes: int, max_error_bytes: int) -> None:
        super().__init__()
        self._server = server
        self._max_bytes, self._max_error_bytes = max_bytes, max_error_bytes
        self._left = 0
        self.status = 0
        self.location: str | None = None
        self.data = bytearray()

    def head(self, head: AnswerHead) -> None:
        self.status, self.location = head.status, head.get("Location")
        if head.status == 200:
            check_plain(head, self._server)
        self._left = self._max_bytes if head.status == 200 else self._max_error_bytes

    def body(self, data: bytes) -> None:
        self.data += data[: self._left]
        self._left -= len(data)
        if self._left < 0:
            if self.status != 200:
                raise EnoughRead
            raise ProtocolViolation(f"{self._server} sent an answer of more than {self._max_bytes} bytes")


class PulledAnswer:
    """A task reads it at its own pace, to its end or until it calls `close`; the server is slowed down."""

    __slots__ = (
        "_close",
        "_ended",
        "_error",
        "_head",
        "_parts",
        "_pause",
        "_paused",
        "_size",
        "_waiter",
        "grace_s",
    )

    def __init__(self, pause: Callable[[bool], None], close: Callable[[], None]) -> None:
        self._pause, self._close = pause, close
        self._paused = self._ended = False
        self._parts: list[bytes] = []
        self._size = 0
        self._head: AnswerHead | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.grace_s = math.inf

    # Called by the connection.

    def head(self, head: AnswerHead) -> None:
        self._head = head
        self._wake()

    def body(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > PAUSE_BYTES and not self._paused:
            self._paused = True
            self._pause(True)
        self._wake()

    def finished(self, error: Exception | None) -> None:
        self._ended, self._error = True, error
        self._wake()

    # Called by the task.

    @property
    def at_end(self) -> bool:
        return self._ended and not self._parts

    @property
    def answer_head(self) -> AnswerHead:
        assert self._head is not None, "the answer has not begun"
        return self._head

    async def begin(self) -> None:
        """Return when the head is there. Raises the `EngineError` of the cause."""
        while self._head is None:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read_any(self) -> bytes:
        """The bytes since the last call; empty at the end. Raises the `EngineError` of the cause."""
        while not self._parts:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return b""
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if self._paused and not self._ended:
            self._paused = False
            self._pause(False)
        return data

    async def read_start(self, limit: int) -> bytes:
        """At most `limit` bytes of the rest. Closes the connection if there are more."""
        found = bytearray()
        while len(found) < limit and (data := await self.read_any()):
            found += data
        if len(found) > limit or not self.at_end:
            self.close()
        return bytes(found[:limit])

    def close(self) -> None:
        """Only a closed connection makes a server drop a request."""
        if not self._ended:
            self._ended = True
            self._close()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
