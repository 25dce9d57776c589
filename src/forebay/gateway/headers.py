"""The few ASGI types, and what every answer is sent with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
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
OURS_UP = HOP_BY_HOP | {
    b"accept-encoding",
    b"authorization",
    b"content-length",
    b"cookie",
    b"endpoint-load-metrics-format",
    b"expect",
    b"host",
    b"traceparent",
    b"tracestate",
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
    return [
        (name.decode("ascii"), value.decode("ascii"))
        for name, value in _kept(headers, OURS_UP)
        if name.isascii() and value.isascii() and value.decode("ascii").isprintable()
    ]


def headers_down(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Those of a replica's headers that the client gets."""
    return _kept(headers, OURS_DOWN)


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
