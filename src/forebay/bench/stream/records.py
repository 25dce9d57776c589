"""Observations of each event and of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.bench.records import EngineSample

MOMENTS = (
    "due_s",
    "emitted_s",
    "read_s",
    "accepted_s",
    "sent_s",
    "first_token_s",
    "answered_s",
    "left_s",
    "committed_s",
)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event, from its own time to its committed result; times are seconds, None if unknown.

    `due_s`: its event time. `free_s`: when the feed could have written it. `emitted_s`: written by the feed;
    `accepted_s`: by the operator; `sent_s`: the call that was answered; `left_s`: its answer left the
    operator. `error`: the cause of its dead letter. `restored`: it was in a checkpoint at a restart.
    """

    index: int
    id: str
    due_s: float
    free_s: float | None = None
    emitted_s: float | None = None
    read_s: float | None = None
    accepted_s: float | None = None
    sent_s: float | None = None
    first_token_s: float | None = None
    answered_s: float | None = None
    left_s: float | None = None
    committed_s: float | None = None
    results: int = 0
    attempts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    restored: bool = False
    error: str | None = None
    journaled: bool = False
    letters: int = 0

    @property
    def doubled(self) -> bool:
        return self.results + self.letters > 1

    @property
    def committed(self) -> bool:
        return self.results > 0

    @property
    def lost(self) -> bool:
        return not self.results and self.error is None


@dataclass(frozen=True, slots=True)
class ResultRecord(EventRecord):
    """A result that stands for many events.

    `id`: equal for repeats. `emitted_s`, `read_s`: its window was found to be over, or its detector emitted
    it. `expected`: events sent that belong to it, without dead letters; None if unknown. `given_up`: those
    whose call was given up.
    """

    stands_for: int | None = None
    expected: int | None = None
    given_up: int = 0

    @property
    def miscounted(self) -> bool:
        return self.committed and self.expected is not None and self.stands_for != self.expected


@dataclass(frozen=True, slots=True)
class MeasuredCheckpoint:
    """By Flink's report, with the bytes of the whole state and those written."""

    number: int
    at_s: float
    duration_s: float
    state_bytes: int
    written_bytes: int
    completed: bool = True


@dataclass(frozen=True, slots=True)
class Killed:
    part: str
    at_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class StreamRun:
    """The result of a pipeline's run under one load.

    `samples`: once a second, by name. `strangers`: ids in the sink that no event had. `resent`: events of a
    data file that earlier loads sent. `earlier_doubled`: doubles of earlier loads. `others_cores`: None if
    not measured. `results`: those that stand for many events; None if each belongs to one. `left_open`:
    events in windows that had not ended.
    """

    began_at: str
    duration_s: float
    asked: Mapping[str, Any]
    events: tuple[EventRecord, ...]
    checkpoints: tuple[MeasuredCheckpoint, ...] = ()
    samples: tuple[EngineSample, ...] = ()
    kills: tuple[Killed, ...] = ()
    planned_kills: int = 0
    strangers: int = 0
    resent: int = 0
    earlier_doubled: int = 0
    resolution_s: float = 0.004
    others_cores: float | None = None
    cores: int = 1
    complete: bool = True
    failure: str | None = None
    results: tuple[ResultRecord, ...] | None = None
    countable: bool = True
    left_open: int = 0
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def followed(self) -> tuple[EventRecord, ...]:
        """The events, or the results that stand for many of them."""
        return self.events if self.results is None else self.results

    @property
    def noun(self) -> str:
        return "event" if self.results is None else "result"
