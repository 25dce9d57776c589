"""A subscriber's side of ZeroMQ's wire protocol in bounded memory (ZMTP 3.0, https://rfc.zeromq.org/spec/23).

libzmq collects all frames of a message before it delivers the first one, and bounds only each frame: one
message without end takes all memory. So it cannot be used with publishers that are not trusted with that.
"""

from __future__ import annotations

import asyncio

from forebay.errors import ProtocolViolation

MAX_FRAMES = 16
MAX_COMMAND_BYTES = 4096
MORE, LONG, COMMAND = 1, 2, 4
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + b"\3\0" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\5READY\x0bSocket-Type\0\0\0\3SUB"
SUBSCRIBE_ALL = b"\0\1\1"


async def subscribe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Subscribe to all topics of the publisher at the other end. Raises `ProtocolViolation`."""
    writer.write(GREETING + bytes((COMMAND, len(READY))) + READY)
    greeting = await reader.readexactly(len(GREETING))
    if greeting[0] != 0xFF or greeting[9] != 0x7F or greeting[10] < 3:
        raise ProtocolViolation("expected ZeroMQ's greeting of version 3 or newer")
    if greeting[12:32].rstrip(b"\0") != b"NULL":
        raise ProtocolViolation("expected a ZeroMQ socket without authentication (mechanism NULL)")
    flags, body = await _frame(reader, MAX_COMMAND_BYTES)
    if flags != COMMAND or not body.startswith(b"\5READY"):
        raise ProtocolViolation("expected ZeroMQ's READY")
    writer.write(SUBSCRIBE_ALL)


async def read_frames(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int
) -> list[bytes]:
    """The frames of the next message, or none for a command. Answers pings.

    Raises `ProtocolViolation` if it has more than `max_bytes` in all, or more than `MAX_FRAMES`, before it is
    received as a whole. As many commands may come between them: what calls this rests between messages only.
    """
    frames: list[bytes] = []
    left, commands = max_bytes, 0
    while True:
        flags, body = await _frame(reader, left)
        if flags & COMMAND:
            if body.startswith(b"\4PING"):
                pong = b"\4PONG" + body[7:23]
                writer.write(bytes((COMMAND, len(pong))) + pong)
                await writer.drain()
            if not frames:
                return []
            commands += 1
            if commands > MAX_FRAMES:
                raise ProtocolViolation(f"a message with more than {MAX_FRAMES} commands between its frames")
            continue
        frames.append(body)
        left -= len(body)
        if not flags & MORE:
            return frames
        if len(frames) == MAX_FRAMES:
            raise ProtocolViolation(f"a message of more than {MAX_FRAMES} frames")


async def _frame(reader: asyncio.StreamReader, max_bytes: int) -> tuple[int, bytes]:
    flags = (await reader.readexactly(1))[0]
    size = int.from_bytes(await reader.readexactly(8 if flags & LONG else 1), "big")
    if flags & ~(MORE | LONG | COMMAND) or (flags & COMMAND and flags & MORE):
        raise ProtocolViolation(f"expected a ZeroMQ frame, found the flags {flags:#x}")
    max_bytes = MAX_COMMAND_BYTES if flags & COMMAND else max_bytes
    if size > max_bytes:
        raise ProtocolViolation(f"a frame of {size} bytes, of at most {max_bytes} that are left for it")
    return flags & (MORE | COMMAND), await reader.readexactly(size)
