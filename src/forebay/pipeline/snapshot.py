"""Snapshots of a running pipeline, and its throughput."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forebay.clock import SystemClock
from forebay.engine.prices import MICRO
from forebay.errors import TooLargeForSink
from forebay.fleet.autoscale.meter import TopicBacklog
from forebay.flink.metric_names import (
    CALL_P50,
    CALL_P99,
    COST,
    EVENT_P50,
    EVENT_P99,
    FAILURES,
    OLDEST,
    READ_RATIO,
    REPLACED_FILES,
    REPLICAS,
    TOO_LARGE,
    TOO_LARGE_ASSIGNMENTS,
    UNREADABLE_FOLDERS,
)
from forebay.flink.metrics import KV_COUNTERS, READ


@dataclass(frozen=True, slots=True)
class Scaling:
    ready: int = 0
    starting: int = 0
    draining: int = 0
    wanted: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KvTransfers:
    transferred: int = 0
    no_server: int = 0
    prefill_failed: int = 0
    no_kv_cache: int = 0
    decode_failed: int = 0

    @property
    def fallbacks(self) -> int:
        return self.no_server + self.prefill_failed + self.no_kv_cache + self.decode_failed


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    completed: int
    failed: int = 0
    took_ms: int = 0
    between_ms: int = 0

    @property
    def commit_s(self) -> float:
        return (self.between_ms + self.took_ms) / 1000


WAITING = "WAITING FOR THE ENGINE"
AWAITS_KAFKA = "WAITING FOR KAFKA"
RESUMING = "RESUMING"
INTERRUPTED = "INTERRUPTED"
FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A running pipeline at one moment; latencies in seconds over the last 30 s.

    Counts are the operator's since its last start, or of the output at the end of a run. `accepted` includes
    the `restored` events.

    - `state`: Flink's, or one of those above. `elapsed_s` restarts from 0 with the job.
    - `oldest_read_ms`: wall clock; in the year 9999 if nothing is pending, 0 if unknown.
    - `failed_commits`: transactions whose results may be lost. `skipped_records`: an upper bound.
    - `source_held_back_ms`: time for which later tasks blocked the source; `held_back_ms`: for which they
      blocked the operator, summed over its subtasks.
    - `failed`: dead letters, and calls that an application continued without, by cause. `kv_transfers`:
      None before the first answer. `read_share`: 0 to 1, of a source with an end. `replicas`: available for
      requests.
    - `cost_pico`: in 10^-12 of the currency, None before the first priced call. `cost_by_key`: the most
      expensive keys, at the end of a run.
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
    restored_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    event_p50_s: float = 0.0
    event_p99_s: float = 0.0
    restarts: int = 0
    failure: str = ""
    engine_restarts: int = 0
    engine_failure: str = ""
    resumes: tuple[str, ...] = ()
    resuming: str = ""
    checkpoint_failure: str = ""
    failed_commits: int = 0
    gaps: tuple[str, ...] = ()
    skipped_records: int = 0
    replaced_files: int = 0
    unreadable_folders: int = 0
    backlog: TopicBacklog | None = None
    scaling: Scaling | None = None
    store_failure: str = ""
    kv_transfers: KvTransfers | None = None
    suspect_times: int = 0
    cut_answers: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    read: int = 0
    read_share: float | None = None
    replicas: int | None = None
    checkpoints: CheckpointStats | None = None
    engine_p50_s: float = 0.0
    engine_p99_s: float = 0.0
    source_held_back_ms: int = 0
    held_back_ms: int = 0
    cost_pico: int | None = None
    cost_by_key: dict[str, int] = field(default_factory=dict)


KEPT = (
    "engine_restarts",
    "engine_failure",
    "resumes",
    "resuming",
    "scaling",
    "store_failure",
    "gaps",
    "skipped_records",
)


AS_COUNTED = (
    *("restored", "pending", "retries", "restored_calls", "prompt_tokens"),
    *("completion_tokens", "cut_answers", "source_held_back_ms", "held_back_ms"),
)


def counted(now: Snapshot, counts: Mapping[str, float], *, one_each: bool) -> Snapshot:
    if not counts:
        return now

    def whole(name: str) -> int:
        return int(counts.get(name, 0))

    same: dict[str, Any] = {name: whole(name) for name in AS_COUNTED}
    came_in, refused = whole("accepted") + whole("restored"), whole(TOO_LARGE)
    # Flink's metrics in one look are not from the same moment.
    left = came_in - whole("results") - whole("dead_letters") if one_each else came_in
    return replace(
        now,
        **same,
        accepted=came_in,
        results=max(0, whole("results") - refused + whole(TOO_LARGE_ASSIGNMENTS)),
        dead_letters=whole("dead_letters") + refused,
        replaced_files=whole(REPLACED_FILES),
        unreadable_folders=whole(UNREADABLE_FOLDERS),
        in_flight=max(0, min(whole("in_flight"), left)),
        oldest_read_ms=round(counts.get(OLDEST, 0) * 1000),
        event_p50_s=counts.get(EVENT_P50, 0.0),
        event_p99_s=counts.get(EVENT_P99, 0.0),
        kv_transfers=_kv_transfers(counts),
        # Flink's counters start at 0 after each restart.
        suspect_times=max(now.suspect_times, whole("suspect_times")),
        read=max(0, whole(READ)),
        read_share=counts.get(READ_RATIO) or now.read_share,
        replicas=whole(REPLICAS) if REPLICAS in counts else None,
        engine_p50_s=counts.get(CALL_P50, 0.0),
        engine_p99_s=counts.get(CALL_P99, 0.0),
        cost_pico=whole(COST) * MICRO if COST in counts else None,
        failed=_failed(counts) | ({TooLargeForSink.cause: refused} if refused else {}),
    )


def _failed(counts: Mapping[str, float]) -> dict[str, int]:
    return {
        name.removeprefix(f"{FAILURES}_"): int(count)
        for name, count in sorted(counts.items())
        if name.startswith(f"{FAILURES}_") and count
    }


def _kv_transfers(counts: Mapping[str, float]) -> KvTransfers | None:
    found = {handover: int(counts.get(name, 0)) for handover, name in KV_COUNTERS.items()}
    return KvTransfers(**found) if any(found.values()) else None


MANY_LOST, MOSTLY_ONE_CAUSE = 20, 0.9


def lost_cause(now: Snapshot, *, one_each: bool) -> str:
    """The cause of nearly all dead letters, if many records have failed and none succeeded; else empty.

    `one_each`: each event has one result or dead letter.
    """
    lost = now.dead_letters
    others = not one_each and lost + now.in_flight + now.pending < now.read
    if now.results or lost < MANY_LOST or others or not now.failed:
        return ""
    cause, count = max(now.failed.items(), key=lambda item: item[1])
    return cause if count >= MOSTLY_ONE_CAUSE * lost else ""


class RunStatus:
    def __init__(self, watch: Callable[[Snapshot], None]) -> None:
        self.last = Snapshot(0.0, "CREATED")
        self._watch = watch
        self._clock = SystemClock()
        self._begun_s: float | None = None

    def show(self, now: Snapshot) -> None:
        now_s = self._clock.monotonic_s()
        if self._begun_s is None:
            self._begun_s = now_s - now.elapsed_s
        kept = {name: getattr(self.last, name) for name in KEPT}
        self.last = replace(now, elapsed_s=now_s - self._begun_s, **kept)
        self._watch(self.last)

    def add(self, **changes: Any) -> None:
        self.note(**changes)
        self._watch(self.last)

    def note(self, **changes: Any) -> None:
        self.last = replace(self.last, **changes)

    def wait(self, state: str, text: str, waited_s: float) -> None:
        """Before the first job, time counts from the start of the wait."""
        waits = replace(self.last, state=state, engine_failure=text)
        self._watch(waits if self._begun_s else replace(waits, elapsed_s=waited_s))


OVER_S = 30.0
MIN_S = 2.0
MOSTLY = 0.5


class Throughput:
    """Throughput over the last `over_s` before each snapshot, in order; None without enough data."""

    def __init__(self, over_s: float = OVER_S) -> None:
        self._over_s = over_s
        self._seen: deque[Snapshot] = deque()
        self._waited_s = self._passed_s = 0.0

    def add(self, now: Snapshot) -> None:
        if self._seen:
            last = self._seen[-1]
            if now.elapsed_s < last.elapsed_s or _done(now) < _done(last) or now.read < last.read:
                # The job has started or restarted, and counts from zero.
                self._seen.clear()
            else:
                self._passed_s += now.elapsed_s - last.elapsed_s
                self._waited_s += now.elapsed_s - last.elapsed_s if now.pending else 0.0
        self._seen.append(now)
        while now.elapsed_s - self._seen[0].elapsed_s > self._over_s:
            self._seen.popleft()

    @property
    def per_s(self) -> float | None:
        return self._rate(_done)

    @property
    def results_per_s(self) -> float | None:
        return self._rate(lambda now: now.results)

    @property
    def read_per_s(self) -> float | None:
        return self._rate(lambda now: now.read)

    @property
    def tokens_per_s(self) -> float | None:
        return self._rate(lambda now: now.completion_tokens)

    @property
    def source_left_s(self) -> float | None:
        rate = self._rate(lambda now: now.read_share or 0.0)
        share = self._seen[-1].read_share if self._seen else None
        return None if share is None or not rate else (1 - share) / rate

    @property
    def gone_s(self) -> float | None:
        counts = [now.backlog.records for now in self._seen if now.backlog is not None]
        over_s = self._seen[-1].elapsed_s - self._seen[0].elapsed_s if self._seen else 0.0
        if over_s < MIN_S or len(counts) < len(self._seen) or counts[-1] >= counts[0]:
            return None
        return counts[-1] * over_s / (counts[0] - counts[-1])

    def _rate(self, count: Callable[[Snapshot], float]) -> float | None:
        if not self._seen:
            return None
        first, last = self._seen[0], self._seen[-1]
        over_s = last.elapsed_s - first.elapsed_s
        return (count(last) - count(first)) / over_s if over_s >= MIN_S else None

    @property
    def engine_limited(self) -> bool:
        return self._waited_s > MOSTLY * self._passed_s

    def left_s(self, now: Snapshot) -> float | None:
        if now.backlog is None or not self.per_s:
            return None
        return (now.backlog.records + now.pending + now.in_flight) / self.per_s

    def limit(self, now: Snapshot) -> str:
        if not now.pending or self.per_s is None:
            return ""
        text = f"limited by the engine: {_rate(self.per_s)}"
        left_s = self.left_s(now)
        return text if left_s is None else f"{text}, backlog done in {span(left_s)}"

    def limited(self, last: Snapshot) -> str:
        if not self.engine_limited or last.elapsed_s <= 0:
            return ""
        return f"limited by the engine: {_rate((last.results + last.dead_letters) / last.elapsed_s)}"


def _done(now: Snapshot) -> int:
    return now.results + now.dead_letters


def _rate(per_s: float) -> str:
    return f"{per_s:.0f} events/s" if per_s >= 10 else f"{per_s:.1f} events/s"


def span(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
