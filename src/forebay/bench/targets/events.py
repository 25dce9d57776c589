"""Reads answers as server-sent events, for any protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from forebay.bench.records import LoadRequest
from forebay.bench.targets.base import OnPiece, Piece
from forebay.clients.http.readers import EVENT_STREAM, AnswerHead, AwaitedReader, EnoughRead
from forebay.clients.http.server import HttpServer
from forebay.engine.client import request_headers
from forebay.engine.failures import Redactor, error_from_status
from forebay.engine.protocol import DONE, SseParser
from forebay.errors import BadRequest, ProtocolViolation, Unreachable

MAX_REFUSAL_BYTES = 64 << 10
MAX_BODY_BYTES = 256 << 20
ONE_TOKEN = Piece(content=True, tokens=1)
CONTENT = Piece(content=True)
NOTHING = Piece()

TakeEvent = Callable[[Any], Piece]
"""Converts one event's JSON to a `Piece`. Raises `KeyError`, `TypeError`, `ValueError`, `AttributeError` or
`IndexError` if it violates the protocol, and `EngineError` for an error reported by the server."""


class EventReader(AwaitedReader):
    """Reads one answer and calls `on_piece`: with its status at its first byte, and for each event.

    An answer is complete with the event `[DONE]`, or when its body ends after a `finish_reason`; with
    `ends_with_body`, for a protocol that has neither, when its body ends.
    """

    __slots__ = (
        "_begun",
        "_ends_with_body",
        "_left",
        "_model",
        "_on_piece",
        "_parser",
        "_quote",
        "_refusal",
        "_status",
        "_take",
        "_url",
        "finish_reason",
    )

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
        self.finish_reason: str | None = None

    def head(self, head: AnswerHead) -> None:
        self._status = head.status
        self._on_piece(Piece(status=head.status))
        if head.status != 200:
            self._refusal = bytearray()
        elif head.content_type != EVENT_STREAM:
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
                self.done = True
                return
            self._read(event)

    def finish(self) -> None:
        """Handle the end of the body. Raises the `EngineError` of a rejected request, and `Unreachable` if
        the answer is incomplete."""
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
            said = self._quote(event[:1000].decode("utf-8", "replace"))
            raise ProtocolViolation(
                f"{self._url} sent an event that is not of its protocol ({type(error).__name__}): {said}"
            ) from None
        if piece.finish_reason is not None:
            self.finish_reason = piece.finish_reason
        if piece is not NOTHING:
            self._on_piece(piece)


def open_server(url: str, api_key: str | None) -> HttpServer:
    headers = {**request_headers(api_key), "Content-Type": "application/json"}
    return HttpServer(url, headers=headers, quote=Redactor(api_key))


MAX_COUNTED = 1 << 31


def count(value: object) -> int:
    """Return `value` if it is a valid count. Raises `ValueError` otherwise."""
    if type(value) is not int or not 0 <= value < MAX_COUNTED:
        raise ValueError("not a count")
    return value


def text_prompt(request: LoadRequest, server: str) -> str:
    """Return the prompt. Raises `BadRequest` if it is token ids."""
    if isinstance(request.prompt, str):
        return request.prompt
    raise BadRequest(f"{server} takes no prompts of tokens: take a workload of texts")
