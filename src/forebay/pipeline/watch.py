"""Watches a submitted job until it ends."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import inf

from forebay.clients.s3.location import Location
from forebay.connectors.feeds.feed import FeedRefused
from forebay.connectors.kafka.gaps import LOST_POSITION
from forebay.connectors.kafka.registry import RegistryRefused
from forebay.errors import LaunchError, PipelineFailed
from forebay.flink.job import FAILED_COMMITS, Checkpoints, RunningJob, end_job
from forebay.flink.metric_names import LIMIT_REACHED, LOOKED
from forebay.flink.metrics import NOTHING_READ_MS
from forebay.flink.rest import RestSilent
from forebay.pipeline.backlog import LastCount
from forebay.pipeline.messages import CANCEL_S, Cancelled, JobLost, JobStatus, Signs, StopRequests
from forebay.pipeline.snapshot import CheckpointStats, Snapshot, counted

log = logging.getLogger("forebay")

POLL_S = 0.5
STILL_LOOKS, SETTLED_LOOKS, LONG_LOOKS = 10, 15, 20
RESTING_ROUNDS, SETTLED_ROUNDS, LONG_ROUNDS = 3, 9, 19
LATE_LOOKS = 2
CAUSE_LOOKS, KEPT_FAILURES = 10, 16
REFUSED = tuple(f"{error.__name__}: " for error in (FeedRefused, RegistryRefused))
BROKEN = (
    "NoResourceAvailableException",
    # The JVM's own. A user's function may have another: "OutOfMemoryError: CUDA out of memory".
    "^OutOfMemoryError: (Java heap|GC overhead|Metaspace|Compressed|Direct buffer|Cannot reserve|unable to)",
    "TimeoutException: Heartbeat of TaskManager",
    r"TaskManager with id \S+ is no longer reachable",
    *LOST_POSITION,
)


def watch_until_end(
    job: RunningJob,
    notify: Callable[[JobStatus], None],
    stop_requests: StopRequests,
    savepoints: Location,
    *,
    one_each: bool,
    waiting: LastCount,
    answered: Callable[[Snapshot], bool],
    committed: Callable[[Checkpoints], None],
    awaits: Callable[[], bool] = lambda: False,
    stirred: Callable[[], int] | None = None,
    at_rest: Callable[[], None] = lambda: None,
) -> Snapshot:
    """Look at `job` every half second, or less often while idle, until it ends; return the last snapshot.

    The job is drained to `savepoints` on request, at the source's limit, or if `answered` returns true.
    `committed` receives the checkpoints, and raises if results were lost. `awaits` prevents rests. `stirred`
    counts answers; with it, rests are longer, and an answer ends them. An exception ends the job first:
    `PipelineFailed`, `JobLost` if a new Flink would help, `Cancelled` on request.
    """
    started_s = time.monotonic()
    last, signs = Snapshot(0.0, "CREATED"), Signs()
    silent = False
    failed_commits, restarts, rests, limit = FailedCommits(), JobRestarts(), Rests(stirred), ReachedLimit()
    try:
        # Calls to Java have no time-out, so not while Flink's REST service in the same JVM is silent.
        while silent or (cause := job.ended()) is None:
            time.sleep(POLL_S)
            if stop_requests.cancel:
                raise Cancelled
            last = replace(last, elapsed_s=time.monotonic() - started_s)
            silent = False
            if rests.passes() and not stop_requests.drain:
                notify(JobStatus(last, signs))
                continue
            try:
                before = last
                last, signs = _look(
                    job, last, restarts, failed_commits, limit, one_each=one_each, committed=committed
                )
                last = replace(last, backlog=waiting.backlog(last))
                rests.looked(before, last, awaits=awaits())
                if rests.settled:
                    at_rest()
                if stop_requests.drain or limit.answered or answered(last):
                    job.drain(savepoints)
            except LaunchError as error:
                # If it refuses connections, it may be ending with its job; the next round shows that.
                silent = isinstance(error, RestSilent)
                signs = replace(signs, answers=False)
            notify(JobStatus(last, signs))
    except BaseException:
        # A job left running would continue to write, and nothing else would end it on a cluster.
        with suppress(LaunchError):
            end_job(job.rest, job.id, CANCEL_S)
        raise
    if cause:
        failed = JobLost if any(re.search(text, cause) for text in BROKEN) else PipelineFailed
        raise failed(f"the Flink job failed: {cause}")
    # A checkpoint in progress failed when its tasks ended; the final one follows it.
    last = replace(last, checkpoint_failure="")
    return replace(last, state="FINISHED", elapsed_s=time.monotonic() - started_s, oldest_read_ms=0)


class Rests:
    """Decides which looks at an idle job to skip, because their REST requests use most of its CPU time."""

    def __init__(self, stirred: Callable[[], int] | None = None) -> None:
        self._still = self._left = 0
        self._stirred = stirred or _never
        self._long = stirred is not None
        self._seen = 0

    def looked(self, before: Snapshot, now: Snapshot, *, awaits: bool = False) -> None:
        times = replace(now, elapsed_s=before.elapsed_s, checkpoints=before.checkpoints)
        same = replace(times, backlog=before.backlog) == before
        waits = awaits or _awaits_answers(now) or (now.backlog is not None and now.backlog.records)
        self._still = self._still + 1 if same and now.state == "RUNNING" and not waits else 0
        levels = (
            (LONG_LOOKS if self._long else inf, LONG_ROUNDS),
            (SETTLED_LOOKS, SETTLED_ROUNDS),
            (STILL_LOOKS, RESTING_ROUNDS),
        )
        self._left = next((rounds for looks, rounds in levels if self._still >= looks), 0)

    @property
    def settled(self) -> bool:
        return self._still == SETTLED_LOOKS

    def passes(self) -> bool:
        before, self._seen = self._seen, self._stirred()
        if self._seen != before:
            self._still = self._left = 0
        self._left -= 1
        return self._left >= 0


def _never() -> int:
    return 0


class ReachedLimit:
    """Decides when to end a job whose endless feed has reached its limit.

    It needs two consecutive looks without a pending answer, as counts may be older than the last record.
    """

    def __init__(self) -> None:
        self._found = 0

    def looked(self, now: Snapshot, *, reached: bool) -> None:
        self._found = self._found + 1 if reached and not _awaits_answers(now) else 0

    @property
    def answered(self) -> bool:
        return self._found >= 2


def _awaits_answers(now: Snapshot) -> bool:
    return bool(now.in_flight or now.pending or 0 < now.oldest_read_ms < NOTHING_READ_MS)


class FailedCommits:
    """Counts the transactions that a job's sinks could not commit.

    A restore repeats its checkpoint's commits, and Kafka rejects them as an old producer's. So failures
    between a restore and the next checkpoint are ignored, and in `LATE_LOOKS` looks after it: metrics are
    older than checkpoints.
    """

    def __init__(self) -> None:
        self._sum = self._last = 0
        self._restored = 0
        self._done_before = self._looks_since = 0

    def __call__(self, count: int, checkpoints: Checkpoints) -> int:
        """Flink's counter restarts from 0 with each restart."""
        if checkpoints.restored != self._restored:
            self._restored, self._done_before, self._last = checkpoints.restored, checkpoints.newest_done, 0
            self._looks_since = 0
        self._looks_since += checkpoints.newest_done > self._done_before
        if self._restored == 0 or self._looks_since > LATE_LOOKS:
            self._sum += max(0, count - self._last)
        self._last = count
        return self._sum


class JobRestarts:
    """Counts a job's restarts, each as soon as its cause is available.

    Flink's list of failures can be older or newer than its number of restarts. After `CAUSE_LOOKS` looks a
    restart counts in any case.
    """

    def __init__(self) -> None:
        self._counted = self._newest_ms = self._looks = 0

    def __call__(self, job: RunningJob) -> tuple[int, str]:
        """Return the number of restarts, and the newest one's cause if the number has changed."""
        restarts = job.restarts()
        if restarts == self._counted:
            return self._counted, ""
        found = job.failures()
        self._looks += 1
        known = found and (found[-1].time_ms > self._newest_ms or len(found) >= min(restarts, KEPT_FAILURES))
        if not known and self._looks < CAUSE_LOOKS:
            return self._counted, ""
        cause = found[-1].cause if known else "Flink does not report why"
        self._counted, self._looks = restarts, 0
        self._newest_ms = found[-1].time_ms if found else 0
        return restarts, cause


def _look(
    job: RunningJob,
    before: Snapshot,
    job_restarts: JobRestarts,
    failed_commits: FailedCommits,
    limit: ReachedLimit,
    *,
    one_each: bool,
    committed: Callable[[Checkpoints], None],
) -> tuple[Snapshot, Signs]:
    state = job.state()
    restarts, cause = job_restarts(job)
    now = replace(before, state=state, restarts=restarts)
    if cause:
        now = replace(now, failure=cause)
        if any(text in now.failure for text in LOST_POSITION):
            # A restart begins at the same offset. A new attempt compares it with the topic first.
            raise JobLost(f"Kafka no longer has the next record: {now.failure}")
        if before.accepted == before.restored and now.failure.startswith(REFUSED):
            # The file is wrong; no restart fixes that.
            raise PipelineFailed(now.failure)
    checkpoints = job.checkpoints()
    committed(checkpoints)
    now = replace(now, checkpoint_failure=checkpoints.failure, checkpoints=_times(checkpoints))
    counts = job.counts()
    signs = Signs(
        task_managers=job.task_managers(),
        looked_ms=round(counts.get(LOOKED, 0) * 1000),
        held_back_ms=int(counts.get("held_back_ms", 0)),
        checkpoint_ms=checkpoints.done[-1][0] if checkpoints.done else 0,
    )
    if not counts:
        return now, signs
    now = replace(now, failed_commits=failed_commits(int(counts.get(FAILED_COMMITS, 0)), checkpoints))
    now = counted(now, counts, one_each=one_each)
    limit.looked(now, reached=counts.get(LIMIT_REACHED, 0) > 0)
    return now, signs


def _times(checkpoints: Checkpoints) -> CheckpointStats | None:
    if not checkpoints.done:
        return CheckpointStats(0, checkpoints.failed) if checkpoints.failed else None
    (before_ms, _), (newest_ms, took_ms) = (
        checkpoints.done[-2:] if checkpoints.done[1:] else (checkpoints.done * 2)
    )
    return CheckpointStats(checkpoints.completed, checkpoints.failed, took_ms, newest_ms - before_ms)
