"""Where a replica publishes its KV-cache events, and the subscription to them."""

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
from forebay.fleet.zmtp import read_frames, subscribe

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
    """Return the address for the replica with this URL.

    `form` is `tcp://{host}:5557`, or `tcp://{host}:{port+200}` to add a number to the URL's port. Raises
    `SettingError` for any other form or an invalid port.
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
"""Silence after which the system probes the connection."""
PARSE_S = 20e-6
"""About what it takes to read a message or a command."""
MIN_REST_S = 0.001
REST = 4
"""Rest after a message, in times of its own work: a publisher gets at most a fifth of the event loop."""


class CacheSubscriber:
    """Connections to publishers; belongs to one event loop. Opens nothing before `follow`.

    Connections are retried without end, also after a message that is too large. A publisher that is faster
    than its reader loses messages, which it does not keep for long.
    """

    async def follow(self, endpoint: str, receive: Callable[[list[bytes]], None]) -> None:
        """Pass each message to `receive` until cancelled."""
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
    """Receive messages until the connection ends. Raises what ended it."""
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
    """Let the system find out if the publisher's machine has gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", PROBE_S), ("TCP_KEEPINTVL", PROBE_S), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, name):  # Not on all systems.
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
