"""A WebSocket feed with a time cursor; made for Bluesky's Jetstream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp
import orjson

from forebay.connectors.feeds.feed import (
    Backoff,
    FeedBroken,
    Headers,
    Mark,
    Received,
    broken,
    connected_for_ever,
    digest_of,
    header_values,
    redirects,
)

JETSTREAM_URL = "wss://jetstream2.us-east.bsky.network/subscribe"


@dataclass(frozen=True, slots=True)
class JetstreamFeed:
    """The messages of a Jetstream server, each as one record.

    The cursor is the `time_us` of the last message. A reconnect asks for one microsecond before it, and
    drops what had come: it does not matter whether the server takes cursors as inclusive. Without a cursor
    the feed starts with what happens now. A connection on which nothing came, not even a ping, for
    `silence_s` is given up and made anew. A message over `max_message_bytes` closes the connection, and is
    met again at the next attempt: the bound must be above what the server sends. `headers` go to the origin
    of `url` only.
    """

    url: str = JETSTREAM_URL
    collections: tuple[str, ...] = ("app.bsky.feed.post",)
    headers: Headers = field(default_factory=dict, repr=False)
    max_message_bytes: int = 16 << 20
    silence_s: float = 60.0
    connect_s: float = 20.0
    backoff: Backoff = field(default_factory=Backoff)

    @property
    def name(self) -> str:
        return f"jetstream:{urlsplit(self.url).hostname}"

    async def read(self, cursor: str | None) -> AsyncIterator[Received]:
        mark = Mark.of(cursor)
        async for received in connected_for_ever(
            self.name, lambda: self._messages(mark), backoff=lambda: self.backoff
        ):
            yield received

    def _query(self, mark: Mark) -> list[tuple[str, str]]:
        query = [("wantedCollections", name) for name in self.collections]
        if mark.at is not None:
            query.append(("cursor", str(int(mark.at) - 1)))
        return query

    async def _messages(self, mark: Mark) -> AsyncIterator[Received]:
        before = int(mark.at) if mark.at is not None else None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.connect_s, connect=self.connect_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trace_configs=redirects(self.headers)) as session,
                session.ws_connect(
                    self.url,
                    params=self._query(mark),
                    headers=header_values(self.headers),
                    timeout=aiohttp.ClientWSTimeout(ws_receive=self.silence_s),
                    max_msg_size=self.max_message_bytes,
                ) as socket,
            ):
                async for message in socket:
                    raw = _payload(message.type, message.data)
                    time_us, digest = _time_us(raw), digest_of(raw)
                    if time_us is not None:
                        if mark.has(digest) or (before is not None and time_us < before):
                            continue
                        before = None if before is not None and time_us > before else before
                    mark.advance(mark.at if time_us is None else str(time_us), digest)
                    yield Received(str(mark), raw, f"{self.name}@{mark.at}/{digest}")
                if socket.exception() is not None:
                    raise broken(socket.exception() or EOFError())
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise broken(error) from None


def _payload(kind: aiohttp.WSMsgType, data: str | bytes) -> bytes:
    if kind not in {aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY}:
        raise FeedBroken(f"the connection broke: {data!r}")
    return data.encode("utf-8") if isinstance(data, str) else bytes(data)


def _time_us(raw: bytes) -> int | None:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    time_us = value.get("time_us") if isinstance(value, dict) else None
    return time_us if isinstance(time_us, int) and not isinstance(time_us, bool) else None
