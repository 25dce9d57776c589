"""A submitted job, watched until it ends: what is told of it, and what is done beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from forebay.connectors.feed import FeedRefused
from forebay.connectors.kafka.registry import RegistryRefused
from forebay.errors import LaunchError, PipelineFailed
from forebay.operators.job import LIMIT_REACHED, RunningJob, end_job
from forebay.pipelines.keeper import Keeper
from forebay.pipelines.lag import LastCount
from forebay.pipelines.snapshot import Snapshot

POLL_S = 0.5
CANCEL_S = 60.0
REFUSED = tuple(f"{error.__name__}: " for error in (FeedRefused, RegistryRefused))
"""How failures begin that no restart will mend."""

Watch = Callable[[Snapshot], None]


def watch_until_end(
    job: RunningJob,
    watch: Watch,
    keeper: Keeper,
    savepoints: Path,
    chores: Sequence[Callable[[], None]],
    *,
    waiting: LastCount,
    answered: Callable[[Snapshot], bool],
) -> Snapshot:
    """Look at `job` every half second, do the `chores`, mend what `keeper` keeps; blocks until the job ended.

    Each look goes to `watch`, with what `waiting` counts in the source's topics. The job is drained, its
    savepoint written under `savepoints`, once `answered` says so or the source has read as much as it shall.
    Whatever is raised here ends the job first. Raises `PipelineFailed` where Flink gave it up, or where no
    restart would mend it.
    """
    started_s = time.monotonic()
    last = Snapshot(0.0, "CREATED")

    def engine_ended(words: str) -> None:
        nonlocal last
        last = replace(last, engine_restarts=last.engine_restarts + 1, engine_failure=words)
        watch(last)

    try:
        while (cause := job.ended()) is None:
            time.sleep(POLL_S)
            last = replace(last, elapsed_s=time.monotonic() - started_s)
            keeper.mend(engine_ended)
            for chore in chores:
                chore()
            # A service that does not answer is one that is ending with its job; the next round will tell.
            with suppress(LaunchError):
                last = _snapshot(job, last, savepoints)
                last = replace(last, backlog=waiting.backlog(last))
                if answered(last):
                    job.drain(savepoints)
            watch(last)
    except BaseException:
        # What runs on would go on to write, and on a cluster nothing else would end it.
        with suppress(LaunchError):
            end_job(job.rest_url, job.id, CANCEL_S)
        raise
    if cause:
        raise PipelineFailed(f"Flink gave the job up: {cause}")
    return replace(last, state="FINISHED", elapsed_s=time.monotonic() - started_s, oldest_read_ms=0)


def _snapshot(job: RunningJob, before: Snapshot, savepoints: Path) -> Snapshot:
    state, restarts = job.state(), job.restarts()
    now = replace(before, state=state, restarts=restarts)
    if restarts != before.restarts:
        now = replace(now, failure=job.failure())
        if not before.accepted and now.failure.startswith(REFUSED):
            # The file is wrong, and no restart will mend it.
            raise PipelineFailed(now.failure)
    counts = job.counts()
    if not counts:
        return now
    if counts.get(LIMIT_REACHED):
        # A feed has no end of its own.
        job.drain(savepoints)

    def whole(name: str) -> int:
        return int(counts.get(name, 0))

    return replace(
        now,
        accepted=whole("accepted"),
        results=whole("results"),
        dead_letters=whole("dead_letters"),
        in_flight=whole("in_flight"),
        pending=whole("pending"),
        oldest_read_ms=whole("oldest_read_ms"),
        retries=whole("retries"),
        reissued=whole("reissued"),
        prompt_tokens=whole("prompt_tokens"),
        completion_tokens=whole("completion_tokens"),
        event_p50_s=counts.get("event_p50_us", 0) / 1e6,
        event_p99_s=counts.get("event_p99_us", 0) / 1e6,
        engine_p50_s=counts.get("engine_p50_us", 0) / 1e6,
    )
