"""The interface of a server under load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from forebay.bench.records import LoadRequest
from forebay.errors import EngineError, ProtocolViolation, ServerFault


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of a streamed answer contains.

    `content`: whether it has any of the answer; `tokens`: how many, if reported. The counts are totals of the
    request; the latest ones hold. `status`: the HTTP status, once, before the first bytes of the body.
    """

    content: bool = False
    tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None


OnPiece = Callable[[Piece], None]
"""Called when a piece arrives; that moment is measured, so it must not block."""


TRIAL = LoadRequest(0, None, "The weather today is", 2)
TRIAL_TOKENS = 4
"""Less than a block of any prefix cache: the load's first request must not find its prompt there."""


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
    """A server under load. Opened once per run; leaving the block closes its connections."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    def open(
        self, connections: int = 1, trials: Sequence[LoadRequest] = (TRIAL,)
    ) -> AbstractAsyncContextManager[None]:
        """Connect, and learn what the first request needs.

        `connections`: how many to open in advance. `trials`: requests to try first (see `trial_requests`).
        Raises `EngineError` if the server does not answer, rejects a trial request or speaks another
        protocol, and `SettingError` if it cannot do what the load needs.
        """
        ...

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        """Send one request and call `on_piece` for each piece of its answer; returns at the answer's end.

        Cancelling it aborts the request. Raises `EngineError` with the server's message, or if the connection
        broke.
        """
        ...


async def try_one(target: Target, trial: LoadRequest, *, faults: bool = False) -> None:
    """Send `trial`, so that a wrong address, model, key or protocol is reported before the load.

    Raises `EngineError` for errors that every request would have. Temporary ones, such as an overload, are
    ignored; with `faults`, a `ServerFault` is raised as well.
    """
    try:
        await target.answer(trial, lambda _: None)
    except ProtocolViolation:
        raise
    except EngineError as error:
        if not error.retryable or (faults and isinstance(error, ServerFault)):
            raise
