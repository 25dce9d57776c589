"""ASGI types, headers, and what ends a request early: hang-up and time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from types import TracebackType
from typing import Any

from forebay.engine.client import MAX_ID_CHARS

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]
PROVE = "forebay.prove"
"""In a scope: what to call once the client has shown that it may call."""


async def send_whole(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, more: bool = False
) -> None:
    """Send an answer in one piece. `more` keeps it and the connection open, though nothing follows."""
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
"""Client headers that are never forwarded: about the connection, secret, or set by the gateway."""
ALLOWED_UP = frozenset((b"accept", b"anthropic-beta", b"anthropic-version", b"content-type", b"openai-beta"))
"""Client headers that are forwarded. Engines read ids, priorities and peers from others."""
OURS_DOWN = HOP_BY_HOP | {
    b"date",
    b"endpoint-load-metrics",
    b"server",
    b"set-cookie",
    b"x-request-id",
}


def headers_up(headers: Iterable[tuple[bytes, bytes]], more: Collection[str] = ()) -> list[tuple[str, str]]:
    """The allowed and plain ones of a client's headers. `more`: further ones that are allowed."""
    kept = _plain(_kept(headers, OURS_UP))
    return [(name, value) for name, value in kept if name.encode() in ALLOWED_UP or name in more]


def trace_context(headers: Mapping[bytes, bytes]) -> list[tuple[str, str]]:
    return _plain((name, headers[name]) for name in TRACE_CONTEXT if name in headers)


def headers_down(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    kept = _kept(headers, OURS_DOWN)
    return [(name, value) for name, value in kept if not name.startswith(b"access-control-")]


def request_id(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"").decode("latin-1").strip()
    if given and len(given) <= MAX_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return ""


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


class HungUp(Exception): ...


class TimeOver(Exception): ...


class TimeLimit:
    """Ends the block with `TimeOver` after `seconds` (infinite: no limit).

    Costs one timer; `asyncio.wait_for` costs a task.
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
    """Ends the block with `HungUp` if the client disconnects. Read the body first."""

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
    """0 before Python 3.11, which does not count."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return 0 if cancelling is None else int(cancelling())


def forget_cancelling(before: int = 0) -> bool:
    """Call it when one cancellation of the current task is handled as something else.

    Returns whether it was the only one since `before`: a task sees two in one round of the loop as one
    `CancelledError`. Before Python 3.11 the other one is lost.
    """
    uncancel = getattr(asyncio.current_task(), "uncancel", None)
    return uncancel is None or uncancel() <= before
