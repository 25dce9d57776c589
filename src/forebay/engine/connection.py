"""Connections to replicas that bound what comes around the body of an answer."""

from __future__ import annotations

import asyncio
from functools import partial

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError, RawResponseMessage
from aiohttp.streams import StreamReader

MAX_INTERIM = 16
"""Interim answers (1xx) before an answer."""
MAX_FRAMING_BYTES = 64 << 10
"""Bytes between two parts of a body, or after the last one: sizes of chunks, extensions, trailers."""


class BoundedHandler(ResponseHandler):
    """Ends a connection whose replica sends no body for too long, whatever else it sends."""

    _interim = 0
    _framing_bytes = 0

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        self._interim = self._interim + 1 if data[0].code < 200 else 0
        # Whole answers that nobody has asked for are queued, too.
        if max(self._interim, len(self._buffer)) <= MAX_INTERIM:
            super().feed_data(data, size)
        else:
            self._end(f"more than {MAX_INTERIM} answers to one request")

    def data_received(self, data: bytes) -> None:
        payload = self._payload
        before = -1 if payload is None else payload.total_bytes
        super().data_received(data)
        if payload is None or payload is not self._payload or payload.total_bytes != before:
            self._framing_bytes = 0
            return
        self._framing_bytes += len(data)
        if self._framing_bytes > MAX_FRAMING_BYTES and not payload.is_eof():
            self._end(f"more than {MAX_FRAMING_BYTES} bytes without a part of its body")

    def _end(self, why: str) -> None:
        payload, error = self._payload, HttpProcessingError(code=502, message=f"the replica sent {why}")
        if payload is not None:
            payload.set_exception(aiohttp.ClientPayloadError(str(error)))
        self.set_exception(error)
        if self.transport is not None:
            self.transport.abort()


def open_connector(*, keepalive_s: float) -> aiohttp.TCPConnector:
    """A connector of the running event loop, without a limit of connections."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=keepalive_s)
    # aiohttp has no setting for the class of its connections.
    connector._factory = partial(BoundedHandler, loop=asyncio.get_running_loop())  # type: ignore[assignment]
    return connector
