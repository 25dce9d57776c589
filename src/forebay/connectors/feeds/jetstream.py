"""A WebSocket feed with a time cursor, made for Bluesky's Jetstream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR
from urllib.parse import urlsplit

import aiohttp
import orjson

from forebay.connectors.feeds.feed import (
    CONNECT_S,
    Backoff,
    FeedBroken,
    Headers,
    Received,
    broken,
    connected_for_ever,
    digest_of,
    header_values,
    redirects,
    within,
)
from forebay.connectors.feeds.replay_window import MAX_TIME_US, REWIND_US, ReplayWindow

log = logging.getLogger(__name__)

MAX_FRUITLESS = 3
"""Connections in a row that only repeat delivered messages. Then the feed rewinds less: otherwise a server
that closes each connection before it has repeated them all would stop the feed for good.
"""


@dataclass(frozen=True, slots=True)
class JetstreamFeed:
    """The messages of a Jetstream server, one record each.

    The cursor is a time: a reconnect or resume rewinds five seconds before the newest `time_us` and drops
    delivered messages (`ReplayWindow`). Without a cursor the feed starts now; a reconnect soon after may add
    messages from just before. A message without a `time_us` is delivered each time it arrives. A connection
    without data, even a ping, for `silence_s` is replaced. A message over `max_message_bytes` closes the
    connection and returns at the next attempt, so set it above what the server sends. `headers` go to the
    origin of `url` only.
    """

    url: str
    headers: Headers = field(default_factory=dict, repr=False)
    max_message_bytes: int = 16 << 20
    silence_s: float = 60.0
    backoff: Backoff = field(default_factory=Backoff)

    @property
    def name(self) -> str:
        return f"jetstream:{urlsplit(self.url).hostname}"

    async def read(self, cursor: str | None) -> AsyncIterator[Received]:
        window = ReplayWindow.of(cursor)
        fruitless = 0

        async def once() -> AsyncIterator[Received]:
            nonlocal fruitless
            rewind_us = REWIND_US // 10 ** max(0, fruitless - MAX_FRUITLESS)
            newest_us, last_us, new = window.newest_us, None, False
            try:
                async for raw in self._payloads(window.cursor_us(rewind_us)):
                    last_us = _time_us(raw)
                    received = self._received(window, raw, last_us)
                    if received is not None:
                        new = True
                        yield received
            finally:
                fruitless = 0 if new or last_us is None else fruitless + 1
                if fruitless == MAX_FRUITLESS + 1 and (last_us or 0) < (newest_us or 0):
                    log.warning(
                        "%s: %d connections in a row ended before they had repeated the last %.0f s; going "
                        "back less, so messages that are further out of order can be lost",
                        *(self.name, fruitless, REWIND_US / 1e6),
                    )

        async for received in connected_for_ever(self.name, once, backoff=lambda: self.backoff):
            yield received

    def _received(self, window: ReplayWindow, raw: bytes, time_us: int | None) -> Received | None:
        digest = digest_of(raw)
        if time_us is not None and not window.add(time_us, digest):
            return None
        place = window.newest_us if time_us is None else time_us
        return Received(window.snapshot(), raw, f"{self.name}@{place}/{digest}")

    async def _payloads(self, cursor_us: int | None) -> AsyncIterator[bytes]:
        """One connection. Raises `FeedBroken` or `FeedRefused`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        try:
            async with aiohttp.ClientSession(
                timeout=timeout, trace_configs=redirects(self.headers)
            ) as session:
                opening = session.ws_connect(
                    self.url,
                    params={} if cursor_us is None else {"cursor": str(cursor_us)},
                    headers=header_values(self.headers),
                    timeout=aiohttp.ClientWSTimeout(ws_receive=self.silence_s),
                    max_msg_size=self.max_message_bytes,
                    autoping=False,
                )
                # aiohttp waits for good for an answer, and for a server that does not read pongs.
                socket = await within(self.silence_s, opening)
                try:
                    async for message in socket:
                        if message.type is aiohttp.WSMsgType.PING:
                            await within(self.silence_s, socket.pong(message.data))
                        elif message.type is not aiohttp.WSMsgType.PONG:
                            yield _payload(message.type, message.data)
                    if socket.exception() is not None:
                        raise broken(socket.exception() or EOFError())
                finally:
                    # `close` would wait for the server to read.
                    with suppress(OSError, AttributeError):
                        socket.get_extra_info("socket").shutdown(SHUT_RDWR)
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
    return time_us if type(time_us) is int and 0 <= time_us <= MAX_TIME_US else None
