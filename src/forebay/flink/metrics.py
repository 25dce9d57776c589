"""The counts of one subtask, and how Flink's metrics get them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from forebay.fleet.autoscale.learned import saved_ms
from forebay.records import Completion, KvHandover
from forebay.stateful.machine import Store

if TYPE_CHECKING:
    from pyflink.metrics import Counter, Distribution, MetricGroup

RELATIVE_ERROR = 0.01
SMALLEST_S = 1e-6
LARGEST_S = 1e5


class LatencyHistogram:
    """Counts of durations, mergeable, in bounded memory. Not thread-safe.

    Buckets grow by a fixed factor (DDSketch: Masson, Rim, Lee, VLDB 2019); values are clamped to 1 µs … 10^5
    s.
    """

    __slots__ = ("_counts", "_log_gamma", "count", "max_s", "sum_s")

    def __init__(self) -> None:
        self._log_gamma = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
        self._counts: dict[int, int] = {}
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0

    def add(self, value_s: float) -> None:
        clamped = min(max(value_s, SMALLEST_S), LARGEST_S)
        bucket = math.ceil(math.log(clamped) / self._log_gamma)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.sum_s += value_s
        self.max_s = max(self.max_s, value_s)

    def extend(self, values_s: Iterable[float]) -> None:
        for value_s in values_s:
            self.add(value_s)

    def merge(self, other: LatencyHistogram) -> None:
        for bucket, n in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + n
        self.count += other.count
        self.sum_s += other.sum_s
        self.max_s = max(self.max_s, other.max_s)

    def quantile_s(self, q: float) -> float:
        if self.count == 0:
            return 0.0
        rank = max(1, math.ceil(q * self.count))
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return 2 * math.exp(bucket * self._log_gamma) / (math.exp(self._log_gamma) + 1)
        return self.max_s


FLUSH_S = 0.5
WINDOW_S = 30.0


NOTHING_DUE_S = 10_000_000


class ScalingGauges:
    """Set by the event loop, which calls `tell` on a change; read by the operator's thread."""

    def __init__(self) -> None:
        self.wanted_replicas: int | None = None
        self.backlog_tokens = 0
        self.next_deadline_s = NOTHING_DUE_S
        self.changed = True
        self.tell: Callable[[], None] = lambda: None
        self.learned = ScalingStateSlot()

    def set(self, wanted: int | None, backlog_tokens: int, next_deadline_s: int | None) -> None:
        """The replicas wanted (None: not decided yet), and the seconds until the first is due (None: nothing
        waits)."""
        due_s = NOTHING_DUE_S if next_deadline_s is None else next_deadline_s
        told = self._told
        self.wanted_replicas, self.backlog_tokens, self.next_deadline_s = wanted, backlog_tokens, due_s
        if told != self._told:
            self.changed = True
            self.tell()

    def publish(self, wanted: int) -> None:
        self.set(wanted, self.backlog_tokens, self.due_s)

    @property
    def due_s(self) -> int | None:
        return None if self.next_deadline_s == NOTHING_DUE_S else self.next_deadline_s

    @property
    def _told(self) -> tuple[int | None, int, int]:
        return self.wanted_replicas, self.backlog_tokens, self.next_deadline_s

    def values(self) -> dict[str, int]:
        self.changed = False
        found = {"backlog_tokens": self.backlog_tokens, "next_deadline_s": self.next_deadline_s}
        return found if self.wanted_replicas is None else {**found, "wanted_replicas": self.wanted_replicas}


KV_COUNTERS: Mapping[KvHandover, str] = {
    "transferred": "kv_transfers",
    "no_server": "kv_fallbacks_no_server",
    "prefill_failed": "kv_fallbacks_prefill_failed",
    "no_kv_cache": "kv_fallbacks_no_kv_cache",
    "decode_failed": "kv_fallbacks_decode_failed",
}


class ReplicasGauge:
    def __init__(self) -> None:
        self.usable: int | None = None
        self.changed = False
        self.tell: Callable[[], None] = lambda: None

    def set(self, usable: int) -> None:
        if usable != self.usable:
            self.usable, self.changed = usable, True
            self.tell()

    def values(self) -> dict[str, int]:
        self.changed = False
        return {} if self.usable is None else {REPLICAS: self.usable}


@dataclass(slots=True)
class InferenceCounters:
    """Counts since the operator opened.

    Each result or dead letter of `infer` belongs to an `accepted` event or one `restored` from a checkpoint.
    `failed`: dead letters, and failed calls after which a program continued. The event loop writes `calls` to
    `kv_fallbacks_decode_failed`, an exporter's thread `dropped_spans`, the operator's thread the rest.
    """

    accepted: int = 0
    restored: int = 0
    results: int = 0
    dead_letters: int = 0
    restored_calls: int = 0
    calls: int = 0
    retries: int = 0
    journal_hits: int = 0
    journal_failures: int = 0
    suspect_times: int = 0
    cut_answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    kv_transfers: int = 0
    kv_fallbacks_no_server: int = 0
    kv_fallbacks_prefill_failed: int = 0
    kv_fallbacks_no_kv_cache: int = 0
    kv_fallbacks_decode_failed: int = 0
    waited_ms: int = 0
    dropped_spans: int = 0
    engine_s: LatencyHistogram = field(default_factory=LatencyHistogram)
    event_s: LatencyHistogram = field(default_factory=LatencyHistogram)
    failed: dict[str, int] = field(default_factory=dict)
    replicas: ReplicasGauge = field(default_factory=ReplicasGauge)
    scaling: ScalingGauges | None = None

    def answered(self, completion: Completion) -> None:
        usage = completion.usage
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.cached_tokens += usage.cached_tokens
        if completion.handover is not None:
            name = KV_COUNTERS[completion.handover]
            setattr(self, name, getattr(self, name) + 1)

    def fail(self, cause: str) -> None:
        """Programs choose causes, too: unusual ones, and those beyond `MAX_CAUSES`, count as `other`."""
        known = cause in self.failed or (len(self.failed) < MAX_CAUSES and CAUSE.fullmatch(cause))
        name = cause if known else OTHER
        self.failed[name] = self.failed.get(name, 0) + 1


FAILED = "failed_"
"""The cause follows."""
CAUSE = re.compile(r"[a-z][a-z0-9_]{0,39}")
MAX_CAUSES = 50
OTHER = "other"

COUNTERS = tuple(each.name for each in fields(InferenceCounters) if each.type == "int")
REPLACED_FILES = "replaced_files"
TOO_LARGE = "too_large"
"""Results that a sink refuses, which become dead letters."""
TOO_LARGE_ASSIGNMENTS = "too_large_assignments"
"""Those of them that the sink of `assignments` refuses."""
READ = "read"
"""Since the job's last start: Flink's count for the operator `READER`."""
READER = "records read"
READ_PPM = "read_ppm"
"""A gauge of a source with an end: the share that was read, in millionths."""
OLDEST = "oldest_read_ms"
LOOKED = "looked_ms"
MOMENTS = (OLDEST, LOOKED)
GAUGES = ("in_flight", "pending", *MOMENTS, "engine_p50_us", "engine_p99_us", "event_p50_us", "event_p99_us")
REPLICAS = "replicas"
READ_METRIC = re.compile(rf"{READER.replace(' ', '_')}(?:__[^.]*)?\.numRecordsOut")
"""PyFlink joins the names of functions that it runs in one operator."""
HIGHEST, LOWEST = frozenset((*GAUGES, READ_PPM)) - {*MOMENTS}, (*MOMENTS, REPLICAS)
SCALING_GAUGES = ("wanted_replicas", "backlog_tokens", "next_deadline_s")

NOTHING_READ_MS = 253_402_300_799_999
"""So that the lowest over subtasks is another one's."""


@dataclass(frozen=True, slots=True)
class OperatorLoad:
    """`oldest_read_ms`: when (wall clock) the oldest event without an answer was read."""

    in_flight: int
    pending: int
    oldest_read_ms: int


class FlinkMetrics:
    """The counters and gauges of one subtask, passed to Flink every half second: a call crosses into Java.

    Latencies: microseconds over the last 30 to 60 seconds. `oldest_read_ms` is never later than the read time
    of an event accepted before. `looked_ms`: when the operator's thread last looked, on a machine clock.
    """

    def __init__(
        self, group: MetricGroup, counts: InferenceCounters, load: Callable[[], OperatorLoad]
    ) -> None:
        self._named = named = group.add_group("forebay")
        self._later: dict[str, Distribution] = {}
        self._counts = counts
        self._load = load
        self._counters = {name: named.counter(name) for name in COUNTERS}
        self._seen = dict.fromkeys(COUNTERS, 0)
        self._failed: dict[str, Counter] = {}
        self._failed_seen: dict[str, int] = {}
        self._in_flight = 0
        self._older = (LatencyHistogram(), LatencyHistogram())
        self._flushed_s = 0.0
        self._turned_s = 0.0
        # Not gauges: Flink would call one on its metrics thread while the task's thread runs
        # in the same interpreter, which can crash the JVM. A distribution is a number held by Java.
        self._gauges = {name: named.distribution(name) for name in GAUGES}

    def flush_if_due(self, now_s: float) -> None:
        if now_s - self._flushed_s >= FLUSH_S or any(each.changed for each in self._of_replicas()):
            self.flush(now_s)

    def report_through(self, wake: Callable[[], None]) -> None:
        """Call `wake` on changes about replicas, so that they are flushed while no event arrives."""
        for each in self._of_replicas():
            each.tell = wake

    def stale(self) -> bool:
        """Whether Flink lacks the newest counts, or shows something in flight."""
        return (
            self._in_flight > 0
            or self._failed_seen != self._counts.failed
            or any(getattr(self._counts, name) != seen for name, seen in self._seen.items())
        )

    def flush(self, now_s: float) -> None:
        self._flushed_s = now_s
        counts = self._counts
        for name, counter in self._counters.items():
            value = getattr(counts, name)
            if value != self._seen[name]:
                counter.inc(value - self._seen[name])
                self._seen[name] = value
        for cause, value in counts.failed.items():
            if cause not in self._failed:
                self._failed[cause] = self._named.counter(FAILED + cause)
            self._failed[cause].inc(value - self._failed_seen.get(cause, 0))
            self._failed_seen[cause] = value
        load = self._load()
        engine, event = _both(self._older[0], counts.engine_s), _both(self._older[1], counts.event_s)
        self._in_flight = load.in_flight
        values = {
            "in_flight": load.in_flight,
            "pending": load.pending,
            OLDEST: load.oldest_read_ms,
            LOOKED: round(now_s * 1000) if load.in_flight or load.pending else NOTHING_READ_MS,
            "engine_p50_us": round(engine.quantile_s(0.5) * 1e6),
            "engine_p99_us": round(engine.quantile_s(0.99) * 1e6),
            "event_p50_us": round(event.quantile_s(0.5) * 1e6),
            "event_p99_us": round(event.quantile_s(0.99) * 1e6),
        }
        for name, gauge in self._gauges.items():
            gauge.update(values[name])
        for each in self._of_replicas():
            self._tell(each.values())
        if now_s - self._turned_s >= WINDOW_S:
            self._turned_s = now_s
            self._older = (counts.engine_s, counts.event_s)
            counts.engine_s, counts.event_s = LatencyHistogram(), LatencyHistogram()

    def _of_replicas(self) -> tuple[ReplicasGauge | ScalingGauges, ...]:
        replicas, scaling = self._counts.replicas, self._counts.scaling
        return (replicas,) if scaling is None else (replicas, scaling)

    def _tell(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            if name not in self._later:
                # Only once known: a 0 would look like a decision, or an outage.
                self._later[name] = self._named.distribution(name)
            self._later[name].update(value)

    def report_oldest(self) -> None:
        self._gauges[OLDEST].update(self._load().oldest_read_ms)


def _both(older: LatencyHistogram, newer: LatencyHistogram) -> LatencyHistogram:
    merged = LatencyHistogram()
    merged.merge(older)
    merged.merge(newer)
    return merged


LEARNED = "learned"
SCALING_NAME = "scaling"


class ScalingStateSlot:
    """`found` is for the event loop, `newest` for the operator's thread."""

    def __init__(self) -> None:
        self.found: bytes | None = None
        self.newest: bytes | None = None

    def take(self) -> bytes | None:
        found, self.found = self.found, None
        return found


class LearnedState:
    """Keeps the newest of `mail` under one key of the subtask. For the operator's thread.

    After a restore at another parallelism, a subtask may find several: it keeps the newest.
    """

    def __init__(self, store: Store, mail: ScalingStateSlot) -> None:
        self._store = store
        self._mail = mail
        self._key: int | None = None
        self._written: bytes | None = None

    def restore(self, keys: Callable[[], Iterable[int]]) -> None:
        """`keys` yields the keys with state, each current when yielded."""
        newest_ms = -2
        for key in keys():
            data = self._store.get(SCALING_NAME) or b""
            if (at_ms := saved_ms(data)) > newest_ms:
                newest_ms, self._key, self._mail.found = at_ms, key, data
        for key in keys():
            if key != self._key:
                self._store.remove(SCALING_NAME)

    def place(self, shards: Iterable[int]) -> Iterable[int]:
        if self._mail.newest is None or self._mail.newest is self._written:
            return ()
        if self._key is None:
            self._key = next(iter(shards), None)
        return () if self._key is None else (self._key,)

    def write(self) -> None:
        newest = self._mail.newest
        if newest is not None:
            self._store.put(SCALING_NAME, newest)
            self._written = newest
