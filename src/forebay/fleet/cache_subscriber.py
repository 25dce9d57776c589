"""A subscriber to a replica's KV-cache events over ZeroMQ (ZMTP 3.0, https://rfc.zeromq.org/spec/23).

Not libzmq: it collects all frames of a message first and bounds only each frame, so one endless message takes
all memory.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable
from functools import partial

from yarl import URL

from forebay.errors import ProtocolViolation, SettingError
from forebay.fleet.cache_events import MAX_MESSAGE_BYTES

FORM = re.compile(r"tcp://\{host\}:(?:([0-9]{1,5})|\{port([+-][0-9]{1,5})\})")


def check_form(form: str) -> str:
    """Return `form`; raises `SettingError` if `cache_endpoint` does not accept it."""
    match = FORM.fullmatch(form)
    if match is None or not 0 < abs(int(match[1] or match[2])) < 65536:
        raise SettingError(
            f"kv_events: expected tcp://{{host}}:5557 or tcp://{{host}}:{{port+200}}, found {form[:80]!r}"
        )
    return form


def cache_endpoint(form: str, replica: str) -> str:
    """Return the address for the replica with this URL. Raises `SettingError` for an invalid form or port.

    `form` is `tcp://{host}:5557`, or `tcp://{host}:{port+200}` to add a number to the URL's port.
    """
    match = FORM.fullmatch(check_form(form))
    assert match is not None
    url = URL(replica)
    fixed, added = match.groups()
    port = int(fixed) if fixed is not None else (url.port or 0) + int(added)
    if not 0 < port < 65536:
        raise SettingError(f"kv_events: {form} gives port {port} for {replica}; expected one from 1 to 65535")
    host = url.host or ""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


log = logging.getLogger(__name__)

RETRY_S = 0.5
SUBSCRIBE_S = 10.0
PROBE_S = 10
PARSE_S = 20e-6
MIN_REST_S = 0.001
REST = 4
"""Rest after a message, in times of its own work: a publisher gets at most a fifth of the event loop."""


class CacheSubscriber:
    """Connections to publishers; belongs to one event loop. Reconnects without end, also after a message that
    is too large. A publisher that is faster than its reader loses messages.
    """

    async def follow(self, endpoint: str, receive: Callable[[list[bytes]], None]) -> None:
        url = URL(endpoint)
        refused = ""
        while True:
            try:
                await _listen(url, partial(_pass_on, receive, endpoint))
            except ProtocolViolation as error:
                if refused != str(error):
                    log.warning("KV-cache events of %s: %s; connecting again", endpoint, error)
                refused = str(error)
            except (OSError, asyncio.IncompleteReadError):
                pass  # Nobody publishes there, or not any more.
            await asyncio.sleep(RETRY_S)


async def _listen(url: URL, receive: Callable[[list[bytes]], None]) -> None:
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection(url.host, url.port)
    late = loop.call_later(SUBSCRIBE_S, writer.transport.abort)
    try:
        _probe(writer.get_extra_info("socket"))
        await subscribe(reader, writer)
        late.cancel()
        rest_s = 0.0
        while True:
            frames = await read_frames(reader, writer, MAX_MESSAGE_BYTES)
            began_s = loop.time()
            if frames:
                receive(frames)
            # Commands and empty messages cost something, too.
            rest_s += REST * (loop.time() - began_s + PARSE_S)
            if rest_s > MIN_REST_S:
                await asyncio.sleep(rest_s)
                rest_s = 0.0
    finally:
        late.cancel()
        # `close` would wait for a publisher that reads nothing.
        writer.transport.abort()


def _pass_on(receive: Callable[[list[bytes]], None], endpoint: str, frames: list[bytes]) -> None:
    try:
        receive(frames)
    except Exception:
        # A defect here must not end the subscription.
        log.exception("KV-cache events of %s could not be read", endpoint)


def _probe(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", PROBE_S), ("TCP_KEEPINTVL", PROBE_S), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, name):  # Not on all systems.
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


MAX_FRAMES = 16
MAX_COMMAND_BYTES = 4096
MORE, LONG, COMMAND = 1, 2, 4
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + b"\3\0" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\5READY\x0bSocket-Type\0\0\0\3SUB"
SUBSCRIBE_ALL = b"\0\1\1"


async def subscribe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Subscribe to all topics. Raises `ProtocolViolation`."""
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

    Raises `ProtocolViolation` for more than `max_bytes` or `MAX_FRAMES`, before the whole message is
    received.
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
