"""The few ASGI types, what every answer is sent with, and what may end a request from outside: its client
hangs up, or its time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from types import TracebackType
from typing import Any
from uuid import uuid4

from forebay.engine.client import MAX_ID_CHARS

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]


async def send_whole(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, more: bool = False
) -> None:
    """An answer in one piece. `more` leaves it open, though nothing may follow: the connection stays."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body, "more_body": more})


def json_headers(*more: tuple[bytes, bytes]) -> RawHeaders:
    return [(b"content-type", b"application/json"), *more]


HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
TRACE_CONTEXT = (b"traceparent", b"tracestate")
OURS_UP = HOP_BY_HOP | {
    b"accept-encoding",
    b"authorization",
    b"content-length",
    b"cookie",
    b"endpoint-load-metrics-format",
    b"expect",
    b"host",
    *TRACE_CONTEXT,
    b"x-api-key",
    b"x-request-id",
}
"""What a replica does not get from the client: what concerns the connection, or is a secret, or is ours."""
OURS_DOWN = HOP_BY_HOP | {
    b"date",
    b"endpoint-load-metrics",
    b"server",
    b"set-cookie",
    b"x-request-id",
}
"""What a client does not get from the replica."""


def headers_up(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Those of a client's headers that the replica gets: plain ones only, so that none can break the call."""
    return _plain(_kept(headers, OURS_UP))


def trace_context(headers: Mapping[bytes, bytes]) -> list[tuple[str, str]]:
    """The headers with the client's trace (W3C Trace Context), plain ones only."""
    return _plain((name, headers[name]) for name in TRACE_CONTEXT if name in headers)


def headers_down(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Those of a replica's headers that the client gets. Which web pages may call is the gateway's to say."""
    kept = _kept(headers, OURS_DOWN)
    return [(name, value) for name, value in kept if not name.startswith(b"access-control-")]


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The client's `X-Request-Id` where it is short and plain, else a new one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1").strip()
    if given and len(given) <= MAX_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return uuid4().hex


def _kept(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> RawHeaders:
    pairs = [(name.lower(), value) for name, value in headers]
    named = {
        token.strip().lower() for name, value in pairs if name == b"connection" for token in value.split(b",")
    }
    return [(name, value) for name, value in pairs if name not in dropped and name not in named]


def _plain(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [
        (name.decode("ascii"), value.decode("ascii"))
        for name, value in headers
        if name.isascii() and value.isascii() and value.decode("ascii").isprintable()
    ]


class HungUp(Exception):
    """The client has gone; nobody is there to be told anything."""


class TimeOver(Exception):
    """The time that was given is over."""


class TimeLimit:
    """Within it, the current task is given `seconds`; then what it waits for ends with `TimeOver`.

    Costs one timer, where `asyncio.wait_for` takes a task. Infinite seconds are no limit.
    """

    __slots__ = ("_before", "_over", "_seconds", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = False
        self._before = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> TimeLimit:
        task = asyncio.current_task()
        assert task is not None
        self._before = cancellings()
        if self._seconds != float("inf"):
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end, task)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._over and forget_cancelling(self._before) and kind is asyncio.CancelledError:
            raise TimeOver from None

    def _end(self, task: asyncio.Task[object]) -> None:
        self._over = True
        task.cancel()


class UntilHungUp:
    """Within it, the current task ends with `HungUp` once the client has gone. The body has been read."""

    __slots__ = ("_before", "_gone", "_watch")

    def __init__(self, receive: Receive) -> None:
        self._gone = False
        self._before = cancellings()
        task = asyncio.current_task()
        assert task is not None
        self._watch = asyncio.create_task(self._wait(receive, task))

    async def __aenter__(self) -> UntilHungUp:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        if self._gone and forget_cancelling(self._before) and kind is asyncio.CancelledError:
            raise HungUp from None

    async def _wait(self, receive: Receive, task: asyncio.Task[object]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        task.cancel()


def cancellings() -> int:
    """How often the current task was cancelled; 0 before Python 3.11, from which on tasks count it."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return 0 if cancelling is None else int(cancelling())


def forget_cancelling(before: int = 0) -> bool:
    """To be called where one cancellation of the current task is taken for something else.

    Whether it was the only one since there were `before`. Of two in one round of the loop, the task sees one
    `CancelledError`: the other one still holds. Before Python 3.11 it is lost.
    """
    uncancel = getattr(asyncio.current_task(), "uncancel", None)
    return uncancel is None or uncancel() <= before
