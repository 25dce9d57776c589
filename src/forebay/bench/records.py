"""The requests of a load, and what was observed of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer with content: when it was read, and its tokens if the server reports them."""

    at_s: float
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request and its answer.

    `due_s`: when it should be sent; in a closed loop, when its slot became free. `sent_s`: just before its
    first byte was written; None: never sent. `first_byte_s`: the first bytes of the answer's body, with or
    without content. `chunks`: pieces with content in order of arrival. `ended_s`: the end of the answer, or
    of the attempt. `asked_exact`: whether the number of tokens requested is exact or a maximum. Token counts
    are the server's own, or None. `error`: what went wrong, without secrets; None: fully answered.
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
    """The engine's figures at one moment, by name (see `engine_signals`)."""

    at_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The result of a run under one load.

    `began_at`: wall-clock start, ISO 8601 in UTC. `asked`: the requested load: kind of schedule, rate per
    second or concurrency, requests, workload, seed. `duration_s`: from the start to the last end. `complete`:
    False if interrupted; the records are those until then. `provenance`: machine, versions, model, command.
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

    `index` counts from 0 within the load. `due_s`: seconds after the start of the run; None in a closed loop.
    `prompt`: text or token ids. `prompt_tokens`: the exact length, if known. `output_tokens`: the most tokens
    to generate, and the least as well if `exact`. Requests of one `group` begin with the same prefix. Those
    of one `session` are its turns, each due no earlier than the previous answer.
    """

    index: int
    due_s: float | None
    prompt: str | Sequence[int]
    output_tokens: int
    exact: bool = True
    prompt_tokens: int | None = None
    group: str | None = None
    session: str | None = None
