"""How a run's counts have changed: points for charts, numbers for its page, and what looks wrong."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from forebay.engine.prices import cost_text
from forebay.pages.units import shown
from forebay.pipeline.snapshot import (
    AWAITS_KAFKA,
    FAILED,
    INTERRUPTED,
    RESUMING,
    WAITING,
    Snapshot,
    Throughput,
    span,
)
from forebay.untrusted_text import counted

MAX_POINTS = 240
STEP_S = 1.0
SLOWER = 2.0
MIN_POINTS = 15
HOT_SHARE = 0.5
MIN_RESULTS = 50
SILENT_S = 10.0
OLD_COUNT_S = 15.0


@dataclass(frozen=True, slots=True)
class Point:
    """Rates per second and latencies in seconds."""

    elapsed_s: float
    read_per_s: float
    done_per_s: float
    tokens_per_s: float
    in_flight: int
    waiting: int
    call_p50_s: float
    event_p50_s: float
    event_p99_s: float


class History:
    """At most `MAX_POINTS` points; at the limit, every other one is dropped."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.last = Snapshot(0.0, "CREATED")
        self.throughput = Throughput()
        self.version = 0
        self._step_s = STEP_S
        self._recent: deque[Snapshot] = deque(maxlen=60)
        self._answered_s = 0.0

    def add(self, now: Snapshot) -> None:
        if now.elapsed_s < self.last.elapsed_s:
            # The wait for the engine is over: the time of the job starts at 0.
            self.points.clear()
            self._recent.clear()
            self._answered_s = now.elapsed_s
        if now.results + now.dead_letters < self.last.results + self.last.dead_letters:
            # Flink has restarted the job: its counts begin again.
            self._recent.clear()
        if now.results + now.dead_letters != self.last.results + self.last.dead_letters or not now.in_flight:
            self._answered_s = now.elapsed_s
        self.last = now
        self.version += 1
        self._recent.append(now)
        self.throughput.add(now)
        if not self.points or now.elapsed_s - self.points[-1].elapsed_s >= self._step_s:
            self.points.append(self._point(now))
        if len(self.points) > MAX_POINTS:
            del self.points[1::2]
            self._step_s *= 2

    def _point(self, now: Snapshot) -> Point:
        over = self.throughput
        return Point(
            now.elapsed_s,
            over.read_per_s or 0.0,
            over.per_s or 0.0,
            over.tokens_per_s or 0.0,
            now.in_flight,
            now.pending if now.backlog is None else now.backlog.records,
            now.engine_p50_s,
            now.event_p50_s,
            now.event_p99_s,
        )

    def status(self) -> tuple[str, str]:
        now = self.last
        words = f"{now.state.lower()} for {duration(now.elapsed_s)}"
        match now.state:
            case "FINISHED":
                return "valid", f"finished after {duration(now.elapsed_s)}"
            case state if state in (FAILED, INTERRUPTED):
                return "invalid", f"{state.lower()} after {duration(now.elapsed_s)}"
            case state if state in (WAITING, AWAITS_KAFKA, RESUMING):
                return "invalid", words
        return "unknown", words

    def problems(self, keys: Sequence[str | None] = (), replicas: int | None = None) -> Iterator[str]:
        """What a person should look at, the gravest first. `keys`: of the newest results."""
        now, recent = self.last, self._recent
        before = recent[0] if recent else now
        if now.state == FAILED and now.failure:
            yield now.failure
        if now.state in (WAITING, AWAITS_KAFKA) and now.engine_failure:
            yield now.engine_failure
        if now.state == RESUMING:
            yield now.resuming
        if now.store_failure:
            yield f"{now.store_failure}. The stream is paused until it is available"
        if now.state != "RUNNING":
            return
        if now.replicas is not None and replicas is not None and now.replicas < replicas:
            yield (
                f"Only {now.replicas} of {counted(replicas, 'replica')} get requests: the others do not "
                f"answer, or fail"
            )
        if now.engine_failure:
            yield now.engine_failure
        silent_s = now.elapsed_s - self._answered_s
        if now.in_flight and silent_s >= SILENT_S:
            waiting = counted(now.in_flight, "call is", "calls are")
            yield f"The engine has not answered for {silent_s:.0f} s, and {waiting} in flight"
        yield from self._slower(now)
        if (retried := now.retries - before.retries) > 0:
            calls = counted(retried, "call was", "calls were")
            yield f"{calls} repeated in the last {_span(before, now)}: the engine failed or refused them"
        yield from _new_letters(before, now)
        yield from _hot_key(keys)
        if now.backlog is not None and now.backlog.age_s >= OLD_COUNT_S:
            yield f"Kafka has not answered for {now.backlog.age_s:.0f} s: nothing is read or committed"
        if now.checkpoint_failure:
            yield f"The newest checkpoint failed, so nothing was committed: {now.checkpoint_failure}"
        if now.failed_commits:
            yield f"{counted(now.failed_commits, 'transaction')} could not be committed"
        for gap in now.gaps[-3:]:
            yield f"Kafka no longer had the next record: {gap}"
        if now.suspect_times:
            what = counted(now.suspect_times, "event has a time", "events have times")
            yield f"{what} in 1970 or 1900: is the source's time_format right?"

    def _slower(self, now: Snapshot) -> Iterator[str]:
        earlier = [point.call_p50_s for point in self.points[: len(self.points) // 2] if point.call_p50_s > 0]
        if len(earlier) < MIN_POINTS or now.engine_p50_s <= 0:
            return
        usual_s = median(earlier)
        if now.engine_p50_s >= SLOWER * usual_s:
            yield (
                f"The engine has become slower: a call takes {duration(now.engine_p50_s)} now (median), "
                f"and took {duration(usual_s)} before"
            )


def _new_letters(before: Snapshot, now: Snapshot) -> Iterator[str]:
    added = now.dead_letters - before.dead_letters
    if added <= 0:
        return
    by_cause = Counter({cause: count - before.failed.get(cause, 0) for cause, count in now.failed.items()})
    causes = [cause for cause, count in by_cause.most_common(2) if count > 0]
    most = f", mostly {' and '.join(causes)}" if causes else ""
    done = max(now.results + now.dead_letters - before.results - before.dead_letters, added)
    yield (
        f"{counted(added, 'dead letter')} in the last {_span(before, now)}, {added / done:.0%} of all events"
        f"{most}: examples are below"
    )


def _hot_key(keys: Sequence[str | None]) -> Iterator[str]:
    named = Counter(key for key in keys if key is not None)
    if len(keys) < MIN_RESULTS or not named:
        return
    (key, count), *others = named.most_common(2)
    if count >= HOT_SHARE * len(keys):
        more = "" if others else "; there is no other"
        yield (
            f"One key is hot: {count / len(keys):.0%} of the newest results have the key {key[:80]!r}{more}. "
            f"Calls of one key may have to wait for each other"
        )


def _span(before: Snapshot, now: Snapshot) -> str:
    return f"{max(now.elapsed_s - before.elapsed_s, 1.0):.0f} s"


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else span(seconds)


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
    yield from _cost(now)
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
    yield from _cost(now)
    yield duration(now.elapsed_s), "from the start to the end"
    if now.event_p50_s:
        yield _latency(now.event_p50_s), f"event to answer, median at last; p99 {_latency(now.event_p99_s)}"
    if now.retries or now.restarts or now.resumes or now.engine_restarts:
        restarts = now.restarts + len(now.resumes) + now.engine_restarts
        yield f"{now.retries:,}", f"repeated calls; {counted(restarts, 'restart')} of Flink or an engine"


def _cost(now: Snapshot) -> Iterable[tuple[str, str]]:
    if now.cost_pico is not None:
        ended = "" if now.state in ENDED else " since the job last started"
        yield cost_text(now.cost_pico), f"cost of the calls{ended}, in the currency of the prices"


def limit_of(now: Snapshot) -> str:
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
