"""A running pipeline at one moment: what a run tells whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.backlog import Backlog

WAITING = "WAITING FOR THE ENGINE"
AWAITS_KAFKA = "WAITING FOR KAFKA"
RESUMING = "RESUMING"
INTERRUPTED = "INTERRUPTED"
FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A running pipeline at one moment; latencies in seconds over the last half minute.

    Counts are those of the operator since its last start, where `accepted` counts the events that came in and
    the `restored` ones that it found in its checkpoint: at least as many as came out and are in flight, where
    each gives one result or dead letter. At the end of a run they are of what it wrote, and `accepted` is
    then the number of events that got their result or dead letter in this run.
    `state` is Flink's word, or `WAITING` or `AWAITS_KAFKA` before the job starts, with the reason in
    `engine_failure`; `elapsed_s` then counts the wait, and from the job's start on it counts anew. `RESUMING`
    is a job that is started again, `INTERRUPTED` and `FAILED` are how a run may end.
    `oldest_read_ms` is the wall-clock time at which the oldest event that awaits its answer was read: of the
    year 9999 where none does, 0 where that is not known.
    `failure` is the cause of the last of `restarts` that Flink made in this run, `engine_failure` what there
    is to say of the last of `engine_restarts`: a local engine that ended is started again. `resumes` are the
    causes for which the run started Flink anew by itself, one text each time, in order; what it does about
    the last is in `resuming`. `checkpoint_failure` is why the last checkpoint failed, empty where it
    completed. `failed_commits` is how many transactions with results or dead letters could not be committed
    in this run: Kafka had ended them, and what they held may be lost. `backlog` is what waits in the topics
    of a Kafka source, counted every few seconds; None before that, and for other sources.
    """

    elapsed_s: float
    state: str
    accepted: int = 0
    restored: int = 0
    results: int = 0
    dead_letters: int = 0
    in_flight: int = 0
    pending: int = 0
    oldest_read_ms: int = 0
    retries: int = 0
    reissued: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    event_p50_s: float = 0.0
    event_p99_s: float = 0.0
    engine_p50_s: float = 0.0
    restarts: int = 0
    failure: str = ""
    engine_restarts: int = 0
    engine_failure: str = ""
    resumes: tuple[str, ...] = ()
    resuming: str = ""
    checkpoint_failure: str = ""
    failed_commits: int = 0
    backlog: Backlog | None = None
