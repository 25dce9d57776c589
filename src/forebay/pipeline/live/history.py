"""How a run's counts have changed: chart points, numbers and problems for its page."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, median

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
    lost_cause,
    span,
)
from forebay.untrusted_text import counted

MAX_POINTS = 240
STEP_S = 1.0
NOW_S = 10.0
"""Window of the rates: a longer one would show a stop as a slow decline."""
RECENT_S = 30.0
SLOWER = 2.0
MIN_POINTS = 15
HOT_SHARE = 0.5
MIN_RESULTS = 50
SILENT_S = 10.0
OLD_COUNT_S = 15.0
HELD_BACK_SHARE = 0.5
FULL_SHARE = 0.9
BUSY_SHARE = 0.7
MAX_SHOWN_CAUSES = 4


class KeyOrder(Enum):
    CALLS = "Its calls run one after another, and the events behind it wait"
    RESULTS = "Its results leave in order, so that one slow call holds up the others"
    SUBTASK = "One of the subtasks does all of its work"


class Limit(Enum):
    KEYS = "limited by keys: calls of a key run one after another"
    CAPACITY = "limited by capacity: as many calls are in flight as `capacity` allows"
    SINK = "limited by the sink: results wait to be written"


@dataclass(frozen=True, slots=True)
class HotKey:
    key: str
    share: float
    order: KeyOrder

    @property
    def text(self) -> str:
        which = f"{self.share:.0%} of the newest results have the key {self.key[:80]!r}"
        return f"One key is hot: {which}. {self.order.value}"


@dataclass(frozen=True, slots=True)
class Point:
    elapsed_s: float
    read_per_s: float
    results_per_s: float
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
        self.now = Throughput(NOW_S)
        self.version = self.points_added = 0
        self.step_s = STEP_S
        self._recent: deque[Snapshot] = deque()
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
        while now.elapsed_s - self._recent[0].elapsed_s > RECENT_S:
            self._recent.popleft()
        self.throughput.add(now)
        self.now.add(now)
        if not self.points or now.elapsed_s - self.points[-1].elapsed_s >= self.step_s:
            self.points.append(self._point(now))
            self.points_added += 1
        if len(self.points) > MAX_POINTS:
            del self.points[1::2]
            self.step_s *= 2

    def _point(self, now: Snapshot) -> Point:
        over = self.now
        return Point(
            now.elapsed_s,
            over.read_per_s or 0.0,
            over.results_per_s or 0.0,
            over.tokens_per_s or 0.0,
            now.in_flight,
            now.pending if now.backlog is None else now.backlog.records,
            now.engine_p50_s,
            now.event_p50_s,
            now.event_p99_s,
        )

    def status(self) -> tuple[str, str]:
        now = self.last
        text = f"{now.state.lower()} for {duration(now.elapsed_s)}"
        match now.state:
            case "FINISHED":
                return "valid", f"finished after {duration(now.elapsed_s)}"
            case state if state in (FAILED, INTERRUPTED):
                return "invalid", f"{state.lower()} after {duration(now.elapsed_s)}"
            case state if state in (WAITING, AWAITS_KAFKA, RESUMING):
                return "invalid", text
        return "unknown", text

    def hot_key(self, keys: Sequence[str | None], order: KeyOrder | None) -> HotKey | None:
        """A key that slows the run down. `keys`: of the newest results; `order`: None if no event waits."""
        named = Counter(key for key in keys if key is not None)
        if order is None or len(keys) < MIN_RESULTS or not named:
            return None
        ((key, count),) = named.most_common(1)
        share = count / len(keys)
        rate_per_s = self.now.results_per_s or 0.0
        if share < HOT_SHARE or not rate_per_s:
            return None
        if order is KeyOrder.CALLS:
            waits = share * rate_per_s * self.last.engine_p50_s >= BUSY_SHARE
        else:
            waits = self._pending() >= 1 or self._held_back_share() > HELD_BACK_SHARE
            waits = waits or (self.last.backlog is not None and self.last.backlog.records > 0)
        return HotKey(key, share, order) if waits else None

    def limit(
        self, keys: Sequence[str | None], order: KeyOrder | None, *, capacity: int, subtasks: int
    ) -> Limit | None:
        if not self._recent or self._pending() >= 1:
            return None
        held_back = self._held_back_share() > HELD_BACK_SHARE
        if self._share_of_time("held_back_ms") > HELD_BACK_SHARE * subtasks:
            return Limit.SINK
        if held_back and fmean(each.in_flight for each in self._recent) >= FULL_SHARE * capacity * subtasks:
            return Limit.CAPACITY
        waits = order is KeyOrder.CALLS and (held_back or self.hot_key(keys, order) is not None)
        return Limit.KEYS if waits else None

    def _pending(self) -> float:
        return fmean(each.pending for each in self._recent)

    def _held_back_share(self) -> float:
        return self._share_of_time("source_held_back_ms")

    def _share_of_time(self, name: str) -> float:
        now, before = self.last, self._recent[0]
        over_s = now.elapsed_s - before.elapsed_s
        return (getattr(now, name) - getattr(before, name)) / 1000 / over_s if over_s > 0 else 0.0

    def problems(
        self,
        hot: HotKey | None = None,
        replicas: int | None = None,
        letters: str = "examples are below",
        *,
        one_each: bool = True,
    ) -> Iterator[str]:
        """Yield problems for a person to check, the gravest first.

        `letters`: where dead letters are. `one_each`: each event has one result or dead letter.
        """
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
        if cause := lost_cause(now, one_each=one_each):
            yield f"All of the last {now.dead_letters:,} records became dead letters ({cause}): {letters}"
        else:
            yield from _new_letters(before, now, letters, one_each=one_each)
        if hot is not None:
            yield hot.text
        if _kafka_silent(now):
            assert now.backlog is not None
            silent = f"Kafka has not answered for {now.backlog.age_s:.0f} s"
            yield f"{silent}: nothing is read from it, or committed to it"
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


def _new_letters(before: Snapshot, now: Snapshot, where: str, *, one_each: bool) -> Iterator[str]:
    added = now.dead_letters - before.dead_letters
    if added <= 0:
        return
    by_cause = +Counter({cause: count - before.failed.get(cause, 0) for cause, count in now.failed.items()})
    causes = [f"{cause} {count:,}" for cause, count in by_cause.most_common(MAX_SHOWN_CAUSES)]
    # Those of calls that an application continued without are counted, too.
    named = f" ({', '.join(causes)})" if causes and by_cause.total() <= added else ""
    done = max(now.results + now.dead_letters - before.results - before.dead_letters, added)
    share = f", {added / done:.0%} of all events" if one_each else ""
    yield f"{counted(added, 'dead letter')}{named} in the last {_span(before, now)}{share}: {where}"


def _kafka_silent(now: Snapshot) -> bool:
    return now.backlog is not None and now.backlog.age_s >= OLD_COUNT_S


def _span(before: Snapshot, now: Snapshot) -> str:
    return f"{max(now.elapsed_s - before.elapsed_s, 1.0):.0f} s"


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else span(seconds)


ENDED = ("FINISHED", FAILED, INTERRUPTED)


def tiles_of(history: History, *, one_each: bool, limit: Limit | None = None) -> Iterable[tuple[str, str]]:
    now, over = history.last, history.now
    if now.state in ENDED:
        yield from _totals(now, one_each=one_each)
        return
    read, done = over.read_per_s, over.results_per_s
    of_source = "" if now.read_share is None else f", {now.read_share:.0%} of the source"
    if now.read or not one_each:
        yield _per_s(read), f"records read: {now.read:,} since the job last started{of_source}"
    yield _per_s(done), f"{'results' if one_each else 'answers of the model'}: {now.results:,}"
    yield from _lag(history)
    yield f"{now.in_flight:,}", f"calls in flight; {limit_of(now, limit)}"
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


def limit_of(now: Snapshot, limit: Limit | None) -> str:
    if now.state != "RUNNING":
        return "the job does not run now"
    if _kafka_silent(now):
        return "limited by Kafka, which does not answer"
    if limit is not None:
        return limit.value
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
        if _kafka_silent(now):
            when = f"as of {duration(now.backlog.age_s)} ago"
        waits = "record waits" if now.backlog.records == 1 else "records wait"
        yield f"{now.backlog.records:,}", f"{waits} in Kafka; {when}"
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
