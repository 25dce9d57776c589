"""What was seen of each event of a run, and of the pipeline meanwhile, before anything is computed from it.

All times are seconds after the run's start, the moment at which the first event could be due, by the wall
clock of this machine, which all of the processes share.
"""

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
"""The moments of an event, in the order in which they come."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event, from its own time to its committed result.

    `id`: the one that it carried; `index` counts the run's events from 0, in the order in which they are due.
    `due_s`: its event time. `free_s`: when the feed could have written it: at `due_s`, or later where the
    pipeline was not connected. `emitted_s`: the feed wrote it. `read_s`: the pipeline got it from its source.
    `accepted_s`: the operator took it up. `sent_s`: the call that was answered was sent. `first_token_s`: its
    first token came. `answered_s`: its answer was complete. `left_s`: the answer left the operator.
    `committed_s`: the result was visible to a reader. What did not happen, or is not told, is None.

    `results`: how often its result is in the sink; `attempts`: calls made for it. `error`: the cause of its
    dead letter. `restored`: it was in a checkpoint at a restart. `journaled`: the journal answered it.
    `letters`: how many dead letters of it came.
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
        """Whether more than one result or dead letter of it came."""
        return self.results + self.letters > 1

    @property
    def committed(self) -> bool:
        """Whether its result is in the sink."""
        return self.results > 0

    @property
    def lost(self) -> bool:
        """Whether neither a result nor a dead letter of it came."""
        return not self.results and self.error is None


@dataclass(frozen=True, slots=True)
class ResultRecord(EventRecord):
    """A result that stands for many events, from its event time to its commit.

    `id`: what it is the result of, the same whenever it comes: key, window and revision of a summary, a trend
    or topic and what happened to it. `due_s`: its event time. `emitted_s` and `read_s`: its window was found
    to be over, or its detector gave it. `answered_s`: where it needed no call, when it left.

    `stands_for`: of so many events it says that they are in it; `expected`: so many were sent that belong
    into it, without dead letters; None where nobody can tell. `given_up`: those of its events whose call was
    given up.
    """

    stands_for: int | None = None
    expected: int | None = None
    given_up: int = 0

    @property
    def miscounted(self) -> bool:
        """Whether it stands for other events than those that belong into it."""
        return self.committed and self.expected is not None and self.stands_for != self.expected


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint, as Flink tells it: when it was triggered, how long it took to its end, the bytes of the
    whole state and those that this one wrote. `completed`: False where it failed."""

    number: int
    at_s: float
    duration_s: float
    state_bytes: int
    written_bytes: int
    completed: bool = True


@dataclass(frozen=True, slots=True)
class Killed:
    """A part that was killed in the run. `back_s`: when what had to be started again was; that which comes
    back by itself, at once."""

    part: str
    at_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class StreamRun:
    """All that a run of a pipeline under one load gave.

    `began_at`: wall-clock time of its start, ISO 8601 in UTC; `duration_s`: from there to its end. `asked`:
    schedule, events, seed, data, and the pipeline's own settings. `events`: in the order in which they were
    due. `checkpoints`: those triggered in the run. `kills`: what was killed, of
    `planned_kills`. `samples`: once a second, by
    name:

    - of the engine, as `forebay.bench.engine_signals` tells them: `running`, `waiting`, `kv_cache_usage`,
      `preemptions`, `prefix_cache_hit_share`, ...; of several engines, each name begins with `engine0_`, ...
    - `watermark_delay_s`: how far the results' event time is behind the clock, where the pipeline has one
    - `in_flight`, `pending`: calls in the operator's slots, and events that wait for one
    - `run_cores`, `run_memory_mb`: the processes of the pipeline, its JVM included; `feed_cores`, ...; and
      those of the processes that were named

    `strangers`: ids in the sink that no event had. `resent`: events of a data file that earlier
    loads sent. `resolution_s`: of the clocks, the coarser one.
    `earlier_doubled`: results and dead letters that events of earlier loads had besides their first.
    `others_cores`: how many cores other programs kept busy meanwhile; None where that was not looked at.
    `complete`: False where it was interrupted, or the pipeline ended: then `failure` says of what.

    `results`: None where each result belongs to one event. Else those that stand for many, by their event
    time: they are what is followed, and `events` have only what is known of them singly, when they came and
    whether they became dead letters. `countable`: whether it is known which results there must be.
    `left_open`: so many events were in windows that had not ended with the load.
    """

    began_at: str
    duration_s: float
    asked: Mapping[str, Any]
    events: tuple[EventRecord, ...]
    checkpoints: tuple[Checkpoint, ...] = ()
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
        """What has a latency: the events, or the results that stand for many of them."""
        return self.events if self.results is None else self.results

    @property
    def noun(self) -> str:
        """What one of those is called."""
        return "event" if self.results is None else "result"
