"""Where a replica publishes its KV-cache events, and the subscription to them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from yarl import URL

from forebay.errors import SettingError, SetupError
from forebay.fleet.cache_events import MAX_FRAME_BYTES

if TYPE_CHECKING:
    import zmq.asyncio


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


def require_zmq() -> None:
    """Raise `SetupError` if pyzmq is not installed."""
    try:
        import zmq.asyncio  # noqa: F401
    except ImportError:
        raise SetupError(
            "kv_events needs pyzmq, which is not installed; run: pip install 'forebay[kv-events]'"
        ) from None


log = logging.getLogger(__name__)

QUEUED = 1000
"""Unread messages that are kept; more are dropped and count as missed."""
RETRY_S = 0.5
MAX_RETRY_MS = 2000
HEARTBEAT_MS = 10_000


class CacheSubscriber:
    """Connections to publishers; belongs to one event loop. Opens nothing before `follow`.

    Raises `SetupError` if pyzmq is missing. Connections are retried without end, and reopened after a frame
    that is too large.
    """

    def __init__(self) -> None:
        require_zmq()
        self._context: zmq.asyncio.Context | None = None

    async def follow(self, endpoint: str, receive: Callable[[list[bytes]], None]) -> None:
        """Pass each message to `receive` until cancelled."""
        import zmq.asyncio

        if self._context is None:
            self._context = zmq.asyncio.Context()
        while True:
            socket = self._context.socket(zmq.SUB)
            try:
                await self._listen(socket, endpoint, receive)
            except zmq.ZMQError as error:
                log.warning("KV-cache events of %s cannot be received: %s", endpoint, error)
                return
            finally:
                socket.disable_monitor()
                socket.close(linger=0)
            await asyncio.sleep(RETRY_S)

    async def _listen(
        self, socket: zmq.asyncio.Socket, endpoint: str, receive: Callable[[list[bytes]], None]
    ) -> None:
        """Return when the connection ends: ZeroMQ reconnects only after some ends."""
        import zmq

        ends = zmq.Event.DISCONNECTED | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
        ended = socket.get_monitor_socket(ends | zmq.Event.HANDSHAKE_FAILED_PROTOCOL)
        socket.setsockopt(zmq.RCVHWM, QUEUED)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, int(1000 * RETRY_S))
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, MAX_RETRY_MS)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.IPV6, 1)
        socket.subscribe(b"")
        socket.connect(endpoint)
        tasks = [asyncio.ensure_future(_read(socket, endpoint, receive)), asyncio.ensure_future(_one(ended))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        if self._context is not None:
            self._context.destroy(linger=0)


async def _read(socket: zmq.asyncio.Socket, endpoint: str, receive: Callable[[list[bytes]], None]) -> None:
    while True:
        frames = await socket.recv_multipart()
        try:
            receive(frames)
        except Exception:
            # A defect here must not end the subscription.
            log.exception("KV-cache events of %s could not be read", endpoint)
        # Messages that already wait need no loop round: let other tasks run.
        await asyncio.sleep(0)


async def _one(socket: zmq.asyncio.Socket) -> None:
    await socket.recv_multipart()
