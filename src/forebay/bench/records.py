"""The requests of a load, and what was observed of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Chunk:
    """`at_s`: when it was read. Tokens are the server's own count, if reported."""

    at_s: float
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request and its answer.

    `due_s`: in a closed loop, when its slot became free. `sent_s`: just before its first byte was written;
    None: never. Token counts are the server's own, or None. `error` None: fully answered.
    """

    index: int
    due_s: float
    sent_s: float | None
    ended_s: float
    first_byte_s: float | None = None
    chunks: tuple[Chunk, ...] = ()
    asked_prompt_tokens: int | None = None
    asked_output_tokens: int | None = None
    asked_exact: bool = True
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None
    group: str | None = None
    session: str | None = None

    @property
    def answered(self) -> bool:
        return self.error is None


@dataclass(frozen=True, slots=True)
class EngineSample:
    at_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The result of a run under one load.

    `began_at`: ISO 8601 in UTC. `asked`: the requested load. `complete`: False if interrupted.
    """

    began_at: str
    duration_s: float
    asked: Mapping[str, Any]
    records: tuple[RequestRecord, ...]
    complete: bool = True
    samples: tuple[EngineSample, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request to send.

    `due_s`: after the start of the run; None in a closed loop. `output_tokens`: at most, and at least if
    `exact`. Requests of one `group` share a prefix; those of one `session` are its turns, in order.
    """

    index: int
    due_s: float | None
    prompt: str | Sequence[int]
    output_tokens: int
    exact: bool = True
    prompt_tokens: int | None = None
    group: str | None = None
    session: str | None = None
