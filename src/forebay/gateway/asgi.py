"""The few ASGI types, and what every answer is sent with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

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
