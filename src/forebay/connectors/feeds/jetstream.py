"""A WebSocket feed with a time cursor, made for Bluesky's Jetstream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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
from forebay.errors import ForebayError

if TYPE_CHECKING:
    import aiohttp

REWIND_US = 5_000_000
"""Messages may be out of order by as much."""
REMEMBER_US = 2 * REWIND_US
"""A server may begin before the cursor."""
MAX_REMEMBERED = 8192
MAX_TIME_US = 2**63 - 1

Entry = tuple[int, str]


@dataclass(frozen=True, slots=True)
class FeedSnapshot:
    entries: list[Entry]
    first: int
    end: int
    high: int | None
    ahead: int | None
    floor: int

    def __str__(self) -> str:
        entries = self.entries[self.first : self.end]
        return orjson.dumps([self.high, self.ahead, self.floor, entries]).decode()


class ReplayWindow:
    """Remembers the messages of the last ten seconds of the feed's time, at most 8,192.

    A newest time counts once the next message confirms it, because a single time may be far ahead.
    """

    __slots__ = ("_ahead", "_digests", "_entries", "_first", "_floor", "_high")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        # Earlier entries are forgotten but stay in the list, which snapshots share.
        self._first = 0
        self._digests: set[str] = set()
        self._high: int | None = None
        self._ahead: int | None = None
        # The newest time that was dropped because the window was full.
        self._floor = -1

    @classmethod
    def of(cls, text: str | None) -> ReplayWindow:
        """Raises `ForebayError`."""
        window = cls()
        if text is None:
            return window
        try:
            high, ahead, floor, entries = orjson.loads(text)
            window._entries = [(_time(time_us), _digest(digest)) for time_us, digest in entries]
            window._high = None if high is None else _time(high)
            window._ahead = None if ahead is None else _time(ahead)
            window._floor = floor if floor == -1 else _time(floor)
        except (ValueError, TypeError) as error:
            raise ForebayError(
                f"the feed's cursor in the checkpoint cannot be read ({str(error)[:200]}): resume from "
                "an older checkpoint, or start over"
            ) from None
        window._digests = {digest for _, digest in window._entries}
        return window

    @property
    def newest_us(self) -> int | None:
        return self._ahead if self._high is None else self._high

    def cursor_us(self, rewind_us: int = REWIND_US) -> int | None:
        """None before the first delivery."""
        newest = self.newest_us
        if newest is None:
            return None
        # Servers differ in whether they send messages with exactly the cursor's time.
        return max(0, min(max(newest - rewind_us, self._floor) + 1, newest - 1))

    def add(self, time_us: int, digest: str) -> bool:
        """Call before delivery. False: a duplicate."""
        if digest in self._digests:
            return False
        self._digests.add(digest)
        self._entries.append((time_us, digest))
        self._advance(time_us)
        self._forget()
        return True

    def snapshot(self) -> FeedSnapshot:
        return FeedSnapshot(
            self._entries, self._first, len(self._entries), self._high, self._ahead, self._floor
        )

    def _advance(self, time_us: int) -> None:
        if self._high is not None and time_us <= self._high + REWIND_US:
            self._high = max(self._high, time_us)
            self._ahead = None
        elif self._ahead is None:
            self._ahead = time_us
        else:
            self._high = min(self._ahead, time_us)
            self._ahead = time_us

    def _forget(self) -> None:
        high = -1 if self._high is None else self._high
        while True:
            time_us, digest = self._entries[self._first]
            full = len(self._entries) - self._first > MAX_REMEMBERED
            if not full and time_us >= high - REMEMBER_US:
                break
            if full and time_us <= high:
                self._floor = max(self._floor, time_us)
            self._digests.discard(digest)
            self._first += 1
        if self._first > max(1000, len(self._entries) // 2):
            self._entries = self._entries[self._first :]
            self._first = 0


def _time(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_TIME_US:
        raise ValueError(f"expected a time in microseconds, found {str(value)[:40]!r}")
    return value


def _digest(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 16:
        raise ValueError(f"expected a digest, found {str(value)[:40]!r}")
    return value


log = logging.getLogger(__name__)

MAX_FRUITLESS = 3
"""After as many connections without a new message, the feed rewinds less: a server may close connections
early."""


@dataclass(frozen=True, slots=True)
class JetstreamFeed:
    """A reconnect or resume rewinds five seconds and drops delivered messages; those without a `time_us` may
    repeat.

    A message over `max_message_bytes` closes the connection and is sent again at the next attempt.
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
        import aiohttp  # takes a tenth of a second, and only the source needs it

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
                # aiohttp waits forever for an answer, and for a server that does not read pongs.
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
    if kind.name not in {"TEXT", "BINARY"}:
        raise FeedBroken(f"the connection broke: {data!r}")
    return data.encode("utf-8") if isinstance(data, str) else bytes(data)


def _time_us(raw: bytes) -> int | None:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    time_us = value.get("time_us") if isinstance(value, dict) else None
    return time_us if type(time_us) is int and 0 <= time_us <= MAX_TIME_US else None
