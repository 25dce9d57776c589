"""The interface of a server under load, and a reader of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson

from forebay.bench.records import LoadRequest
from forebay.clients.http.readers import (
    CLOSE_GRACE_S,
    EVENT_STREAM,
    AnswerHead,
    AwaitedReader,
    EnoughRead,
    check_plain,
)
from forebay.clients.http.server import HttpServer
from forebay.engine.client import replica_url, request_headers
from forebay.engine.failures import Redactor, error_from_object, error_from_status
from forebay.engine.protocol import DONE, SseParser
from forebay.errors import BadRequest, EngineError, ProtocolViolation, ServerFault, Unreachable


@dataclass(frozen=True, slots=True)
class Piece:
    """One event of a streamed answer. `content`: whether it has any of the answer. Counts are totals so far.
    `status`: once, before the body."""

    content: bool = False
    tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None


OnPiece = Callable[[Piece], None]
"""Must not block: the moment of the call is measured."""


TRIAL = LoadRequest(0, None, "The weather today is", 2)
TRIAL_TOKENS = 4
"""Less than a block of any prefix cache, so that the load's prompts are not cached."""


def trial_requests(load: Sequence[LoadRequest]) -> tuple[LoadRequest, ...]:
    """A short request of each form in `load`: text, token ids."""
    texts = next((one for one in load if isinstance(one.prompt, str)), None)
    tokens = next((one for one in load if not isinstance(one.prompt, str)), None)
    found = []
    if texts is not None:
        found.append(replace(TRIAL, exact=texts.exact))
    if tokens is not None:
        found.append(replace(TRIAL, prompt=tokens.prompt[:TRIAL_TOKENS], exact=tokens.exact))
    return tuple(found)


class Target(Protocol):
    @property
    def name(self) -> str: ...

    def open(
        self, connections: int = 1, trials: Sequence[LoadRequest] = (TRIAL,)
    ) -> AbstractAsyncContextManager[None]:
        """Connect `connections` in advance, and send `trials`.

        Raises `EngineError` if every request would fail, and `SettingError` if the server cannot do what the
        load needs.
        """
        ...

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        """Send one request; returns at its answer's end. Cancelling aborts it. Raises `EngineError`."""
        ...


async def try_one(target: Target, trial: LoadRequest, *, faults: bool = False) -> None:
    """Send `trial`, so that a wrong address, model or key is reported before the load.

    Ignores temporary errors, except a `ServerFault` with `faults`.
    """
    try:
        await target.answer(trial, lambda _: None)
    except ProtocolViolation:
        raise
    except EngineError as error:
        if not error.retryable or (faults and isinstance(error, ServerFault)):
            raise


MAX_REFUSAL_BYTES = 64 << 10
MAX_BODY_BYTES = 256 << 20
ONE_TOKEN = Piece(content=True, tokens=1)
CONTENT = Piece(content=True)
NOTHING = Piece()

TakeEvent = Callable[[Any], Piece]
"""Converts one event's JSON; `KeyError`, `TypeError`, `ValueError`, `AttributeError` and `IndexError` mean
that it violates the protocol."""


class EventReader(AwaitedReader):
    """Reads one answer: complete with `[DONE]`, or at the body's end after a `finish_reason` or with
    `ends_with_body`."""

    def __init__(
        self,
        url: str,
        model: str,
        quote: Redactor,
        take: TakeEvent,
        on_piece: OnPiece,
        *,
        ends_with_body: bool = False,
    ) -> None:
        super().__init__()
        self._ends_with_body = ends_with_body
        self._left = MAX_BODY_BYTES
        self._url = url
        self._model = model
        self._quote = quote
        self._take = take
        self._on_piece = on_piece
        self._parser = SseParser(replica=url, quote=quote)
        self._refusal: bytearray | None = None
        self._status = 0
        self._begun = False
        self.done = False
        self.finish_reason: str | None = None

    def head(self, head: AnswerHead) -> None:
        self._status = head.status
        self._on_piece(Piece(status=head.status))
        if head.status != 200:
            self._refusal = bytearray()
            return
        check_plain(head, self._url)
        if head.content_type != EVENT_STREAM:
            found = self._quote(head.get("Content-Type") or "nothing")
            raise ProtocolViolation(f"{self._url} sent no event stream but {found!r}")

    def body(self, data: bytes) -> None:
        if self._refusal is not None:
            self._refusal += data[: MAX_REFUSAL_BYTES - len(self._refusal)]
            if len(self._refusal) == MAX_REFUSAL_BYTES:
                raise EnoughRead
            return
        if self.done:
            return
        self._left -= len(data)
        if self._left < 0:
            raise ProtocolViolation(f"{self._url} sent an answer of more than {MAX_BODY_BYTES} bytes")
        if not self._begun:
            self._begun = True
            self._on_piece(NOTHING)
        for event in self._parser.feed(data):
            if event == DONE:
                self.done, self.grace_s = True, CLOSE_GRACE_S
                return
            self._read(event)

    def finish(self) -> None:
        """Raises the `EngineError` of a rejection, `Unreachable` if the answer is incomplete."""
        if self._refusal is not None:
            raise error_from_status(
                self._status, bytes(self._refusal), replica=self._url, model=self._model, quote=self._quote
            )
        if not self.done:
            self._parser.end()
            if self.finish_reason is None and not self._ends_with_body:
                raise Unreachable(f"{self._url} ended its answer before it was complete")

    def _read(self, event: bytes) -> None:
        try:
            piece = self._take(orjson.loads(event))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            detail = self._quote(event[:1000].decode("utf-8", "replace"))
            raise ProtocolViolation(
                f"{self._url} sent an event that is not of its protocol ({type(error).__name__}): {detail}"
            ) from None
        if piece.finish_reason is not None:
            self.finish_reason = piece.finish_reason
        if piece is not NOTHING:
            self._on_piece(piece)


class HttpTarget:
    model: str | None = None
    ends_with_body = False

    def __init__(self, url: str, path: str, api_key: str | None) -> None:
        self.url = replica_url(url)
        self._path = path
        self._api_key = api_key
        self._quote = Redactor(api_key)
        self._server: HttpServer | None = None

    @property
    def name(self) -> str:
        return f"{self.url}{self._path}"

    @asynccontextmanager
    async def open(
        self, connections: int = 1, trials: Sequence[LoadRequest] = (TRIAL,)
    ) -> AsyncIterator[None]:
        headers = {**request_headers(self._api_key), "Content-Type": "application/json"}
        self._server = HttpServer(self.url, headers=headers, quote=self._quote)
        try:
            await self._server.connect()
            await self._try_out(trials)
            await self._server.make_ready(connections)
            yield
        finally:
            await self._server.close()
            self._server = None

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        assert self._server is not None, "the target is not open"
        reader = EventReader(
            self.url,
            self.model or "",
            self._quote,
            self._taker(),
            on_piece,
            ends_with_body=self.ends_with_body,
        )
        await self._server.post(self._path, orjson.dumps(self._body(request)), reader)
        reader.finish()

    async def _try_out(self, trials: Sequence[LoadRequest]) -> None:
        for trial in trials:
            await try_one(self, trial)

    def _body(self, request: LoadRequest) -> dict[str, Any]:
        raise NotImplementedError

    def _taker(self) -> TakeEvent:
        raise NotImplementedError

    def _error(self, error: Any) -> EngineError:
        return error_from_object(error, replica=self.url, model=self.model or "", quote=self._quote)


MAX_COUNTED = 1 << 31


def count(value: object) -> int:
    """Raises `ValueError` for an invalid count."""
    if type(value) is not int or not 0 <= value < MAX_COUNTED:
        raise ValueError("not a count")
    return value


def text_prompt(request: LoadRequest, server: str) -> str:
    """Raises `BadRequest` if the prompt is token ids."""
    if isinstance(request.prompt, str):
        return request.prompt
    raise BadRequest(f"{server} takes no prompts of tokens: take a workload of texts")
