"""A feed replaces the connection to a server that sends nothing, too much, or what it must not."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import SO_RCVBUF, SOL_SOCKET

import pytest

from forebay.connectors.feeds.feed import Backoff, Feed
from forebay.connectors.feeds.jetstream import JetstreamFeed
from forebay.connectors.feeds.sse import SseFeed

from .bounds import within_bounds

pytestmark = pytest.mark.heavy

PING = b"\x89\x7d" + bytes(125)
HOSTILE = {
    "a frame of a terabyte": (b"\x82\x7f" + (1 << 40).to_bytes(8, "big"), bytes(1 << 16)),
    "fragments": (b"\x02\0", b"\0\x7e\xff\xff" + bytes(65_535)),
    "empty fragments": (b"\x02\0", b"\0\0" * 1000),
    "compressed": (b"", b"\xc1\x05hello"),
    "pings": (b"", PING * 1000),
}
"""How a WebSocket begins after its handshake, and what follows without end."""


@asynccontextmanager
async def hostile(begin: bytes, more: bytes, *, upgrades: bool) -> AsyncIterator[tuple[str, list[None]]]:
    """A server that reads nothing after the request. Yields its address, and an item for each connection."""
    opened: list[None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(None)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if upgrades:
                key = head.lower().split(b"sec-websocket-key: ")[1].split()[0]
                key = head[head.lower().index(key) :][: len(key)]
                found = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11", usedforsecurity=False)
                accept = base64.b64encode(found.digest())
                writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n")
                writer.write(b"Connection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n")
                transport = writer.transport
                assert isinstance(transport, asyncio.ReadTransport)
                transport.pause_reading()
            writer.write(begin)
            while not writer.transport.is_closing():
                writer.write(more)
                await writer.drain()
                await asyncio.sleep(0.01 if more else 0.1)
        except (OSError, IndexError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    # Pongs that are not read soon fill it.
    server.sockets[0].setsockopt(SOL_SOCKET, SO_RCVBUF, 1)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}/", opened
    finally:
        server.close()


async def replaced(feed: Feed, opened: list[None]) -> None:
    """Returns once the feed has given up its connection."""
    got: list[object] = []

    async def follow() -> None:
        async for received in feed.read(None):
            got.append(received)

    following = asyncio.ensure_future(follow())
    with within_bounds():
        while len(opened) < 2:
            assert not following.done()
            await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert got == []


@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_web_socket_is_reconnected(kind: str) -> None:
    async with hostile(*HOSTILE[kind], upgrades=True) as (address, opened):
        feed = JetstreamFeed(f"ws://{address}", silence_s=0.5, backoff=Backoff(0.01, 0.02))
        await replaced(feed, opened)


@pytest.mark.parametrize("make", [JetstreamFeed, SseFeed])
@pytest.mark.parametrize("more", [b"", b"a"], ids=["no answer", "a head without end"])
async def test_server_that_sends_nothing_is_reconnected(make: type, more: bytes) -> None:
    scheme = "ws" if make is JetstreamFeed else "http"
    async with hostile(b"HTTP/1.1 200 OK\r\nx-a: " if more else b"", more, upgrades=False) as (
        address,
        opened,
    ):
        feed = make(f"{scheme}://{address}", silence_s=0.5, backoff=Backoff(0.01, 0.02))
        await replaced(feed, opened)
