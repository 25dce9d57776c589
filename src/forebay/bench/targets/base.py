"""What a load is sent to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from forebay.bench.load.request import LoadRequest
from forebay.errors import EngineError, ProtocolViolation, ServerFault


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


TRIAL = LoadRequest(0, None, "The weather today is", 2)
TRIAL_TOKENS = 4
"""Fewer than a block of any prefix cache: the load's first request does not find its prompt there."""


def trial_requests(load: Sequence[LoadRequest]) -> tuple[LoadRequest, ...]:
    """A short request of each form that `load` has: a text, or token ids."""
    texts = next((one for one in load if isinstance(one.prompt, str)), None)
    tokens = next((one for one in load if not isinstance(one.prompt, str)), None)
    found = []
    if texts is not None:
        found.append(replace(TRIAL, exact=texts.exact))
    if tokens is not None:
        found.append(replace(TRIAL, prompt=tokens.prompt[:TRIAL_TOKENS], exact=tokens.exact))
    return tuple(found)


class Target(Protocol):
    """A server under load. Opened once for a run; the block's end closes its connections."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def open(
        self, connections: int = 1, trials: Sequence[LoadRequest] = (TRIAL,)
    ) -> AbstractAsyncContextManager[None]:
        """Connect, and find out what has to be known before the first request. `connections`: how many to
        have ready then, so that as many requests at once need not wait for theirs. `trials`: the requests to
        try first (see `trial_requests`).

        Raises `EngineError` if the server is not there, refuses a trial request or answers it in another
        protocol, `SettingError` if it cannot do what the load asks of it.
        """
        ...

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        """Send one request, and call `on_piece` for each piece of its answer as it comes; return at the
        answer's end. Cancelling it aborts the request.

        Raises `EngineError` with what the server said, or where the connection broke.
        """
        ...


async def try_one(target: Target, trial: LoadRequest, *, faults: bool = False) -> None:
    """Send `trial`, so that a wrong address, model, key or protocol is reported before the load.

    Raises `EngineError` for what would fail each request. What may pass, such as an overload, is left to the
    run; with `faults`, a `ServerFault` is raised, too.
    """
    try:
        await target.answer(trial, lambda _: None)
    except ProtocolViolation:
        raise
    except EngineError as error:
        if not error.retryable or (faults and isinstance(error, ServerFault)):
            raise
