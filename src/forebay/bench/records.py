"""What was seen of each request of a load, before anything is computed from it.

All times are seconds after the start of the run, by one monotonic clock of the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer that had content: when it was read, and how many tokens it held, if it says so."""

    at_s: float
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, as asked and as answered.

    `due_s`: when it was to be sent; in a closed loop, when its place became free. `sent_s`: just before its
    first byte was written; None: never sent. `first_byte_s`: the first bytes of the answer's body, whether or
    not they held content. `chunks`: the pieces with content, in the order in which they came. `ended_s`: the
    end of the answer, or of the attempt. `asked_exact`: whether as many tokens were to be generated as asked,
    and not at most as many. The counts of tokens are the server's own; None where it gave none. `error`: what
    went wrong, without anything secret; None: answered in full.
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
    """The engine's own figures at one moment, by name (see `engine_signals`)."""

    at_s: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LoadRun:
    """All that a run under one load gave.

    `began_at`: wall-clock time of its start, ISO 8601 in UTC. `asked`: the load as it was asked for: kind of
    schedule, rate per second or concurrency, requests, workload, seed. `duration_s`: from the start to the
    last end. `complete`: False where it was interrupted; the records are then what came until then.
    `provenance`: machine, versions, model, command.
    """

    began_at: str
    duration_s: float
    asked: Mapping[str, Any]
    records: tuple[RequestRecord, ...]
    complete: bool = True
    samples: tuple[EngineSample, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
