"""What a load is sent to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from forebay.bench.load.request import LoadRequest


@dataclass(frozen=True, slots=True)
class Piece:
    """What one read of a streamed answer told. `content`: whether it held any of the answer; `tokens`: how
    many, where the protocol tells. The counts are totals of the request, the last one told holds."""

    content: bool = False
    tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None


class Target(Protocol):
    """A server under load. Opened once for a run; the block's end closes its connections."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def open(self) -> AbstractAsyncContextManager[None]: ...

    def answer(self, request: LoadRequest) -> AsyncIterator[Piece]:
        """Send one request and give its answer as it comes; closing the iterator aborts it.

        Raises `EngineError` with what the server said, or where the connection broke.
        """
        ...
