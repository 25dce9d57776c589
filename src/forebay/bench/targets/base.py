"""What a load is sent to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from forebay.bench.load.request import LoadRequest
from forebay.errors import EngineError, ProtocolViolation


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of a streamed answer told. `content`: whether it held any of the answer; `tokens`: how
    many, where the protocol tells. The counts are totals of the request, the last one told holds. `status`:
    the HTTP status, told once, before the first bytes of the answer's body."""

    content: bool = False
    tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None


OnPiece = Callable[[Piece], None]
"""Called in the moment in which a piece is there, which is the moment that is measured. Must not block."""


class Target(Protocol):
    """A server under load. Opened once for a run; the block's end closes its connections."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def open(self, connections: int = 1) -> AbstractAsyncContextManager[None]:
        """Connect, and find out what has to be known before the first request. `connections`: how many to
        have ready then, so that as many requests at once need not wait for theirs.

        Raises `EngineError` where the server is not there, refuses one trial request or answers it in another
        protocol, `SettingError` where it is not as asked for.
        """
        ...

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        """Send one request, and call `on_piece` for each piece of its answer as it comes; return at the
        answer's end. Cancelling it aborts the request.

        Raises `EngineError` with what the server said, or where the connection broke.
        """
        ...


TRIAL = LoadRequest(0, None, "The weather today is", 2)


async def try_one(target: Target) -> None:
    """Send `TRIAL`, so that a wrong address, model, key or protocol is told before the load.

    Raises `EngineError` for what would fail each request. What may pass, as an overload, is for the run to
    tell.
    """
    try:
        await target.answer(TRIAL, lambda _: None)
    except ProtocolViolation:
        raise
    except EngineError as error:
        if not error.retryable:
            raise
