from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ProtocolViolation
from forebay.fleet import cache_subscriber
from forebay.fleet.cache_events import MAX_MESSAGE_BYTES, read_message
from forebay.fleet.cache_subscriber import (
    COMMAND,
    GREETING,
    LONG,
    MAX_COMMAND_BYTES,
    MAX_FRAMES,
    MORE,
    READY,
    CacheSubscriber,
    read_frames,
)

from ..attacks.bounds import within_bounds  # noqa: TID252

LEFT = 1000
HELLO = GREETING + bytes((COMMAND, len(READY))) + READY.replace(b"SUB", b"PUB")


class Replies:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None: ...


def frame(body: bytes, flags: int = 0, *, long: bool = False) -> bytes:
    if long or len(body) > 255:
        return bytes((flags | LONG,)) + len(body).to_bytes(8, "big") + body
    return bytes((flags, len(body))) + body


def message(frames: Sequence[bytes]) -> bytes:
    return b"".join(frame(one, MORE) for one in frames[:-1]) + frame(frames[-1])


def read(raw: bytes, left: int = LEFT) -> tuple[list[bytes], bytes]:
    async def reading() -> tuple[list[bytes], bytes]:
        reader, replies = asyncio.StreamReader(), Replies()
        reader.feed_data(raw)
        reader.feed_eof()
        return await read_frames(reader, replies, left), replies.written  # type: ignore[arg-type]

    return asyncio.run(reading())


@given(frames=st.lists(st.binary(max_size=300), min_size=1, max_size=3))
def test_frames_are_read_unchanged(frames: list[bytes]) -> None:
    assert read(message(frames)) == (frames, b"")


@given(raw=st.binary(max_size=64))
def test_any_bytes_are_a_message_or_one_error(raw: bytes) -> None:
    try:
        frames, _ = read(raw)
    except (ProtocolViolation, asyncio.IncompleteReadError):
        return
    assert sum(map(len, frames)) <= LEFT
    assert len(frames) <= MAX_FRAMES


@pytest.mark.parametrize(
    "raw",
    [
        frame(bytes(LEFT + 1)),
        frame(bytes(LEFT), MORE) + frame(b"a"),
        frame(b"", MORE) * (MAX_FRAMES + 1),
        frame(b"a", MORE) + frame(b"", COMMAND) * (MAX_FRAMES + 1) + frame(b"b"),
        bytes((LONG,)) + b"\xff" * 8,
        bytes((LONG | COMMAND,)) + (1 << 20).to_bytes(8, "big"),
        frame(b"a", 8),
        frame(b"a", MORE | COMMAND),
    ],
)
def test_too_large_message_is_rejected_before_its_end(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read(raw)


def test_command_size_limit_does_not_depend_on_message_size() -> None:
    with pytest.raises(ProtocolViolation, match="of at most 4096"):
        read(frame(bytes(MAX_COMMAND_BYTES + 1), COMMAND), 1 << 20)


def test_ping_is_answered_and_other_commands_are_skipped() -> None:
    ping = frame(b"\4PING\0\1context", COMMAND)
    assert read(ping) == ([], frame(b"\4PONGcontext", COMMAND))
    assert read(frame(b"\5OTHER", COMMAND)) == ([], b"")
    # Between the frames of a message.
    assert read(frame(b"a", MORE) + ping + frame(b"b"))[0] == [b"a", b"b"]


@asynccontextmanager
async def flooding(begin: bytes, more: bytes, sent: list[int]) -> AsyncIterator[str]:
    """A publisher that sends `more` without end. `sent`: bytes of each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent.append(0)
        try:
            await reader.readexactly(64)
            writer.write(HELLO + begin)
            while sent[-1] < 1 << 28:
                writer.write(more)
                await writer.drain()
                sent[-1] += len(more)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"", frame(bytes(1 << 20), MORE)),
        (b"", frame(b"", MORE) * 1000),
        (bytes((LONG | MORE,)) + (1 << 40).to_bytes(8, "big"), bytes(1 << 16)),
        (b"", frame(bytes(200), COMMAND)),
    ],
)
async def test_endless_message_is_not_kept(begin: bytes, more: bytes) -> None:
    # Commands are read and forgotten, each on its own.
    enough = 1 << (22 if more[0] == COMMAND else 25)
    sent: list[int] = []
    heard: list[list[bytes]] = []
    async with flooding(begin, more, sent) as endpoint:
        with within_bounds():
            following = asyncio.ensure_future(CacheSubscriber().follow(endpoint, heard.append))
            while not sent or (sent[-1] < enough and len(sent) < 2):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert heard == []
    if more[0] != COMMAND:
        # What the kernel holds was sent, too.
        assert sent[0] < MAX_MESSAGE_BYTES + (16 << 20)


async def test_endless_messages_do_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_subscriber, "PARSE_S", 1e6)
    sent: list[int] = []
    heard: list[list[bytes]] = []
    async with flooding(b"", message([b"", b"a"]) * 1000, sent) as endpoint:
        following = asyncio.ensure_future(CacheSubscriber().follow(endpoint, heard.append))
        while not sent or sent[-1] < 1 << 20:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert len(heard) <= 1


@pytest.mark.heavy
def test_the_largest_hostile_message_is_read_in_bounded_memory() -> None:
    row = b"\xdc\xff\xff" + b"\x80" * 0xFFFF
    payload = b"\x92\x01\xdd" + (31).to_bytes(4, "big") + row * 31
    assert len(payload) < MAX_MESSAGE_BYTES
    with within_bounds():
        assert read_message([b"", bytes(8), payload]).events == ()
