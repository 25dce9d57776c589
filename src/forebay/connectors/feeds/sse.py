"""Server-sent events as a feed that resumes by `Last-Event-ID`, made for Wikimedia's recent changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from forebay.connectors.feeds.feed import (
    CONNECT_S,
    Backoff,
    FeedRefused,
    Headers,
    Mark,
    Received,
    answered,
    broken,
    connected_for_ever,
    digest_of,
    header_values,
    redirects,
    within,
)
from forebay.connectors.formats import MAX_RECORD_BYTES
from forebay.records import JSON

EVENT_STREAM = "text/event-stream"
MAX_RETRY_S = 300.0
MAX_ID_BYTES = 16_384
LINE_END = b"\n"
MESSAGE = "message"
FIELD = "sse"
TYPE_HEADER, ID_HEADER = "sse-event", "sse-id"


@dataclass(frozen=True, slots=True)
class SseEvent:
    """`id`: an event without `id:` inherits it. `cut_bytes` are missing at the end of the data."""

    data: bytes
    id: str | None
    own_id: bool
    type: str | None = MESSAGE
    cut_bytes: int = 0


class SseDecoder:
    """The HTML standard's event stream (9.2.6). An event beyond `max_bytes` is cut to one byte more: the
    parser rejects it."""

    def __init__(
        self, *, max_bytes: int = MAX_RECORD_BYTES, last_id: str | None = None, retry_s: float | None = None
    ) -> None:
        self._max_bytes = max_bytes
        self._line = bytearray()
        self._line_cut = 0
        self._data = bytearray()
        self._data_cut = 0
        self._has_data = False
        self._skip_lf = False
        self._first = True
        self._own_id = False
        self._id = last_id
        self._type: str | None = MESSAGE
        self.last_id = last_id
        self.retry_s = retry_s

    def feed(self, chunk: bytes) -> Iterator[SseEvent]:
        if self._skip_lf and chunk:
            self._skip_lf = False
            chunk = chunk.removeprefix(b"\n")
        *ended, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(LINE_END)
        self._skip_lf = chunk.endswith(b"\r")
        for piece in ended:
            self._hold(piece)
            event = self._take(bytes(self._line))
            self._line.clear()
            self._line_cut = 0
            if event is not None:
                yield event
        self._hold(rest)

    def _hold(self, piece: bytes) -> None:
        # Room for the field's name; the part dropped here would not have been kept anyway.
        most = max(self._max_bytes, MAX_ID_BYTES) + 64
        room = max(0, most - len(self._line))
        self._line += piece[:room]
        self._line_cut += max(0, len(piece) - room)

    def _take(self, line: bytes) -> SseEvent | None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            room = max(0, self._max_bytes + 1 - len(self._data))
            added = b"\n" + value if self._has_data else value
            self._data += added[:room]
            self._data_cut += max(0, len(added) - room) + self._line_cut
            self._has_data = True
        elif name == b"id" and b"\0" not in value and len(value) <= MAX_ID_BYTES:
            self._id = value.decode("utf-8", "replace")
            self._own_id = True
        elif name == b"event":
            self._type = value.decode("utf-8", "replace") if len(value) <= MAX_ID_BYTES else None
        elif name == b"retry" and value.isdigit():
            digits = value.lstrip(b"0") or b"0"
            self.retry_s = min(int(digits) / 1000, MAX_RETRY_S) if len(digits) < 10 else MAX_RETRY_S
        return None

    def _dispatch(self) -> SseEvent | None:
        type = MESSAGE if self._type == "" else self._type
        event = None
        if self._has_data:
            event = SseEvent(bytes(self._data), self._id, self._own_id, type, self._data_cut)
        self.last_id = self._id
        self._data.clear()
        self._data_cut = 0
        self._has_data = False
        self._own_id = False
        self._type = MESSAGE
        return event


@dataclass(frozen=True, slots=True)
class SseFeed:
    """Each event's data is one record; fields and headers `sse…` have its type and id.

    Resumes by the last event's id and drops duplicates.
    """

    url: str
    headers: Headers = field(default_factory=dict, repr=False)
    max_record_bytes: int = MAX_RECORD_BYTES
    silence_s: float = 60.0
    backoff: Backoff = field(default_factory=Backoff)

    @property
    def name(self) -> str:
        return f"sse:{urlsplit(self.url).hostname}"

    async def read(self, cursor: str | None) -> AsyncIterator[Received]:
        mark = Mark.of(cursor)
        retry_s: float | None = None

        async def once() -> AsyncIterator[Received]:
            nonlocal retry_s
            decoder = SseDecoder(max_bytes=self.max_record_bytes, last_id=mark.at, retry_s=retry_s)
            try:
                async for event in self._events(mark, decoder):
                    yield event
            finally:
                retry_s = decoder.retry_s

        async for received in connected_for_ever(
            self.name, once, backoff=lambda: _with_retry(self.backoff, retry_s)
        ):
            yield received

    async def _events(self, mark: Mark, decoder: SseDecoder) -> AsyncIterator[Received]:
        import aiohttp  # takes a tenth of a second, and only the source needs it

        headers = {"User-Agent": "forebay", **header_values(self.headers), "Accept": EVENT_STREAM}
        if mark.at:
            headers["Last-Event-ID"] = mark.at
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self.silence_s)
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=timeout, read_bufsize=65536, trace_configs=redirects(self.headers)
                ) as session,
                # Otherwise a byte of the head from time to time would block the feed forever.
                await within(self.silence_s, session.get(self.url, headers=headers)) as response,
            ):
                if response.status != 200:
                    raise answered(response.status)
                if response.content_type != EVENT_STREAM:
                    raise FeedRefused(f"the server answered with {response.content_type}, not {EVENT_STREAM}")
                async for chunk in response.content.iter_any():
                    for event in decoder.feed(chunk):
                        received = self._received(mark, event)
                        if received is not None:
                            yield received
                    mark.at = decoder.last_id
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise broken(error) from None

    def _received(self, mark: Mark, event: SseEvent) -> Received | None:
        id, type = (event.id or "").encode(), (event.type or "").encode()
        digest = digest_of(id, type, event.data)
        if event.own_id and mark.has(digest):
            return None
        mark.advance(event.id, digest)
        headers = {name: value for name, value in ((TYPE_HEADER, type), (ID_HEADER, id)) if value}
        return Received(
            str(mark),
            event.data,
            f"{self.name}@{digest}",
            fields_of(headers) or NO_TYPE_OR_ID,
            headers,
            event.cut_bytes,
        )


NO_TYPE_OR_ID: Mapping[str, Mapping[str, JSON]] = {FIELD: {"event": None, "id": None}}


def fields_of(headers: Mapping[str, bytes | None]) -> Mapping[str, Mapping[str, JSON]]:
    found = [headers.get(name) for name in (TYPE_HEADER, ID_HEADER)]
    if found == [None, None]:
        return {}
    type, id = (None if data is None else data.decode("utf-8", "replace") for data in found)
    return {FIELD: {"event": type, "id": id}}


def _with_retry(backoff: Backoff, retry_s: float | None) -> Backoff:
    if retry_s is None:
        return backoff
    first_s = max(2 * retry_s, 0.001)
    return replace(backoff, first_s=first_s, most_s=max(first_s, backoff.most_s))
