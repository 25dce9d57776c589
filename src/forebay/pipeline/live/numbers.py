"""The numbers on a run's page, each with what it means."""

from __future__ import annotations

from collections.abc import Iterable

from forebay.pages.units import shown
from forebay.pipeline.live.history import History, duration
from forebay.pipeline.snapshot import FAILED, INTERRUPTED, Snapshot
from forebay.untrusted_text import counted

ENDED = ("FINISHED", FAILED, INTERRUPTED)


def tiles_of(history: History, *, one_each: bool) -> Iterable[tuple[str, str]]:
    """Each number with what it means."""
    now, over = history.last, history.throughput
    if now.state in ENDED:
        yield from _totals(now, one_each=one_each)
        return
    read, done = over.read_per_s, over.per_s
    of_source = "" if now.read_share is None else f", {now.read_share:.0%} of the source"
    if now.read or not one_each:
        yield _per_s(read), f"records read: {now.read:,} since the job last started{of_source}"
    yield _per_s(done), f"{'results' if one_each else 'answers of the model'}: {now.results:,}"
    yield from _lag(history)
    yield f"{now.in_flight:,}", f"calls in flight; {limit_of(now)}"
    yield _latency(now.event_p50_s), f"event to answer, median; p99 {_latency(now.event_p99_s)}"
    yield _latency(now.engine_p50_s), f"one call to the engine, median; p99 {_latency(now.engine_p99_s)}"
    yield from _commits(now)
    tokens = now.prompt_tokens + now.completion_tokens
    yield f"{shown(over.tokens_per_s or 0.0)}", f"generated tokens/s; {tokens:,} tokens, with prompts"
    if now.scaling is not None:
        more = [f"{now.scaling.wanted} wanted", f"{now.scaling.starting} starting"]
        yield f"{now.scaling.ready}", f"replicas ready; {', '.join(more)}"
    elif now.replicas is not None:
        yield (
            f"{now.replicas}",
            "replicas that get requests" if now.replicas != 1 else "replica that gets requests",
        )
    restarts = now.restarts + len(now.resumes)
    yield f"{now.dead_letters:,}", "dead letters" if now.dead_letters != 1 else "dead letter"
    if now.retries or restarts or now.engine_restarts:
        restarted = counted(restarts + now.engine_restarts, "restart")
        yield f"{now.retries:,}", f"repeated calls; {restarted} of Flink or an engine"


def _totals(now: Snapshot, *, one_each: bool) -> Iterable[tuple[str, str]]:
    average = _per_s(now.results / now.elapsed_s if now.elapsed_s else None)
    if one_each:
        yield f"{now.accepted:,}", "events"
    elif now.read:
        yield f"{now.read:,}", "records read"
    yield f"{now.results:,}", f"{'results' if one_each else 'results and answers'}; {average} on average"
    yield f"{now.dead_letters:,}", "dead letters" if now.dead_letters != 1 else "dead letter"
    yield f"{now.prompt_tokens + now.completion_tokens:,}", "tokens, with prompts"
    yield duration(now.elapsed_s), "from the start to the end"
    if now.event_p50_s:
        yield _latency(now.event_p50_s), f"event to answer, median at last; p99 {_latency(now.event_p99_s)}"
    if now.retries or now.restarts or now.resumes or now.engine_restarts:
        restarts = now.restarts + len(now.resumes) + now.engine_restarts
        yield f"{now.retries:,}", f"repeated calls; {counted(restarts, 'restart')} of Flink or an engine"


def limit_of(now: Snapshot) -> str:
    """What limits the number of calls in flight."""
    if now.state != "RUNNING":
        return "the job does not run now"
    if now.pending:
        return f"limited by the engine: {counted(now.pending, 'more event waits', 'more events wait')}"
    return "limited by the source: nothing waits for the engine"


def _lag(history: History) -> Iterable[tuple[str, str]]:
    now, over = history.last, history.throughput
    if now.backlog is not None:
        gone_s = over.gone_s
        when = "it grows" if gone_s is None and now.backlog.records else "nothing waits"
        if gone_s is not None:
            when = f"gone in {duration(gone_s)}"
        yield f"{now.backlog.records:,}", f"records wait in Kafka; {when}"
    elif now.read_share is not None and (left_s := over.source_left_s) is not None and now.read_share < 1:
        yield duration(left_s), "until the source is read, at this rate"


def _commits(now: Snapshot) -> Iterable[tuple[str, str]]:
    made = now.checkpoints
    if made is None or not made.completed:
        yield "–", "answer to commit: no checkpoint is complete yet"
        return
    failed = f", {made.failed} failed" if made.failed else ""
    took = duration(made.took_ms / 1000)
    if made.between_ms:
        yield f"≤ {duration(made.commit_s)}", "answer to commit, by the time between the last two checkpoints"
    word = "checkpoint" if made.completed == 1 else "checkpoints"
    yield f"{made.completed:,}", f"{word} completed{failed}; the newest took {took}"


def _per_s(rate: float | None) -> str:
    return "–" if rate is None else f"{shown(rate)}/s"


def _latency(seconds: float) -> str:
    return "–" if seconds <= 0 else duration(seconds)
