"""What was observed of each event and of the pipeline."""

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
"""The moments of an event, in their order."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event, from its own time to its committed result. Unknown values are None.

    `id`: the one that it carried; `index` counts the run's events from 0, in the order in which they are due.
    `due_s`: its event time. `free_s`: when the feed could have written it: at `due_s`, or later if the
    pipeline was not connected. `emitted_s`: the feed wrote it. `read_s`: the pipeline's source received it.
    `accepted_s`: the operator accepted it. `sent_s`: the call that was answered was sent. `first_token_s`:
    its first token arrived. `answered_s`: its answer was complete. `left_s`: the operator emitted the answer.
    `committed_s`: the result was visible to a reader.

    `results`: how often its result is in the sink; `attempts`: calls made for it. `error`: the cause of its
    dead letter. `restored`: it was in a checkpoint at a restart. `journaled`: the journal answered it.
    `letters`: its dead letters.
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
        """Whether it has more than one result or dead letter."""
        return self.results + self.letters > 1

    @property
    def committed(self) -> bool:
        return self.results > 0

    @property
    def lost(self) -> bool:
        """Whether it has neither a result nor a dead letter."""
        return not self.results and self.error is None


@dataclass(frozen=True, slots=True)
class ResultRecord(EventRecord):
    """A result that stands for many events, from its event time to its commit.

    `id`: equal for repeats: key, window and revision of a summary, or the trend or topic and its event.
    `due_s`: its event time. `emitted_s` and `read_s`: when its window was found to be over, or its detector
    emitted it. `answered_s`: when it left, if it needed no call. `stands_for`: the events that it reports to
    contain; `expected`: the events sent that belong to it, without dead letters; None if unknown. `given_up`:
    those of its events whose call was given up.
    """

    stands_for: int | None = None
    expected: int | None = None
    given_up: int = 0

    @property
    def miscounted(self) -> bool:
        """Whether it stands for a wrong number of events."""
        return self.committed and self.expected is not None and self.stands_for != self.expected


@dataclass(frozen=True, slots=True)
class MeasuredCheckpoint:
    """One checkpoint by Flink's report: when it was triggered, its duration, the bytes of the whole
    state and those that it wrote."""

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

    `began_at`: wall-clock start, ISO 8601 in UTC; `duration_s`: from there to its end. `asked`: schedule,
    events, seed, data, and the pipeline's own settings. `events`: in the order in which they were due.
    `checkpoints`: those triggered in the run. `kills`: those made, of `planned_kills`. `samples`: once a
    second, by name:

    - of the engine, as in `forebay.bench.sampling`: `running`, `waiting`, `kv_cache_usage`,
      `preemptions`, `prefix_cache_hit_share`, ...; with several engines, names begin with `engine0_`, ...
    - `watermark_delay_s`: how far the results' event time is behind the clock, if the pipeline has event time
    - `in_flight`, `pending`: calls in the operator's slots, and events that wait for one
    - `run_cores`, `run_memory_mb`: the processes of the pipeline, including its JVM; `feed_cores`, ...; and
      those of the named processes

    `strangers`: ids in the sink that no event had. `resent`: events of a data file that earlier loads sent.
    `resolution_s`: of the coarser clock. `earlier_doubled`: results and dead letters of earlier loads' events
    beyond their first. `others_cores`: cores that other programs kept busy; None if not measured. `complete`:
    False if interrupted, or if the pipeline ended: `failure` then has the reason.

    `results`: None if each result belongs to one event. Else those that stand for many, by event time: these
    are followed, and `events` hold only when each came and whether it became a dead letter. `countable`:
    whether the expected results are known. `left_open`: events in windows that had not ended with the load.
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
        """What has a latency: the events, or the results that stand for many of them."""
        return self.events if self.results is None else self.results

    @property
    def noun(self) -> str:
        return "event" if self.results is None else "result"
