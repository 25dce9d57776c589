"""The counts of one subtask, and how Flink's metrics get them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from forebay.clock import Clock
from forebay.engine.prices import MICRO
from forebay.flink.job_marks import ActivityMarks
from forebay.flink.jvm_task import number_gauge
from forebay.flink.latency import LatencyBuckets, LatencyHistogram, RecentLatency
from forebay.flink.learned import ScalingStateSlot
from forebay.flink.metric_names import (
    BY_NAME,
    CALL,
    CALL_P50,
    CALL_P99,
    COMMIT,
    COST,
    EVENT,
    EVENT_P50,
    EVENT_P99,
    FAILURES,
    FINDINGS,
    FIRST_TOKEN,
    GROUP,
    LOOKED,
    OLDEST,
    REPLICAS,
    WAITED,
    counter_of,
    label_value,
)
from forebay.records import Completion, KvHandover

if TYPE_CHECKING:
    from pyflink.datastream import RuntimeContext
    from pyflink.metrics import Counter, MetricGroup

FLUSH_S = 0.5
NOTHING_DUE_S = 10_000_000


class ScalingGauges:
    """Set by the event loop, which calls `notify` on a change; read by the operator's thread."""

    def __init__(self) -> None:
        self.wanted_replicas: int | None = None
        self.backlog_tokens = 0
        self.next_deadline_s = NOTHING_DUE_S
        self.changed = True
        self.notify: Callable[[], None] = lambda: None
        self.learned = ScalingStateSlot()

    def set(self, wanted: int | None, backlog_tokens: int, next_deadline_s: int | None) -> None:
        """`wanted` None: not decided yet. `next_deadline_s` None: nothing waits."""
        due_s = NOTHING_DUE_S if next_deadline_s is None else next_deadline_s
        published = self._published
        self.wanted_replicas, self.backlog_tokens, self.next_deadline_s = wanted, backlog_tokens, due_s
        if published != self._published:
            self.changed = True
            self.notify()

    def publish(self, wanted: int) -> None:
        self.set(wanted, self.backlog_tokens, self.due_s)

    @property
    def due_s(self) -> int | None:
        return None if self.next_deadline_s == NOTHING_DUE_S else self.next_deadline_s

    @property
    def _published(self) -> tuple[int | None, int, int]:
        return self.wanted_replicas, self.backlog_tokens, self.next_deadline_s

    def values(self) -> dict[str, int]:
        self.changed = False
        found = {"backlog_tokens": self.backlog_tokens, "next_deadline_seconds": self.next_deadline_s}
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
        self.notify: Callable[[], None] = lambda: None

    def set(self, usable: int) -> None:
        if usable != self.usable:
            self.usable, self.changed = usable, True
            self.notify()

    def values(self) -> dict[str, int]:
        self.changed = False
        return {} if self.usable is None else {REPLICAS: self.usable}


@dataclass(slots=True)
class InferenceCounters:
    """Counts since the operator opened.

    Each result or dead letter of `infer` belongs to an `accepted` event or one `restored` from a checkpoint.
    `commit_s`: None if it is not measured. `failed`: dead letters, and failed calls after which a program
    continued. `findings`: an application's results by kind. `cost_pico`: None before the first priced call.
    The event loop writes `calls` to `kv_fallbacks_decode_failed`, `first_token_s` and `cost_pico`, an
    exporter's thread `dropped_spans`, the operator's thread the rest.
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
    waited_s: float = 0.0
    dropped_spans: int = 0
    engine_s: LatencyHistogram = field(default_factory=LatencyHistogram)
    event_s: LatencyHistogram = field(default_factory=LatencyHistogram)
    first_token_s: LatencyHistogram = field(default_factory=LatencyHistogram)
    commit_s: LatencyHistogram | None = None
    failed: dict[str, int] = field(default_factory=dict)
    findings: dict[str, int] = field(default_factory=dict)
    replicas: ReplicasGauge = field(default_factory=ReplicasGauge)
    scaling: ScalingGauges | None = None
    cost_pico: int | None = None

    @property
    def cost_micro(self) -> int:
        return (self.cost_pico or 0) // MICRO

    def answered(self, completion: Completion) -> None:
        usage = completion.usage
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.cached_tokens += usage.cached_tokens
        timing = completion.timing
        if timing.first_token_s is not None:
            self.first_token_s.add(timing.first_token_s - timing.sent_s)
        if completion.handover is not None:
            name = KV_COUNTERS[completion.handover]
            setattr(self, name, getattr(self, name) + 1)

    def fail(self, cause: str) -> None:
        name = label_value(cause, self.failed)
        self.failed[name] = self.failed.get(name, 0) + 1

    def find(self, kind: str) -> None:
        name = label_value(kind, self.findings)
        self.findings[name] = self.findings.get(name, 0) + 1


COUNTERS = tuple(each.name for each in fields(InferenceCounters) if each.type == "int")
GAUGES = ("in_flight", "pending", OLDEST, LOOKED, WAITED, CALL_P50, CALL_P99, EVENT_P50, EVENT_P99)
"""Numbers that are set. `WAITED` is a counter for its readers; Flink's hold whole numbers."""
READ = "read"
READER = "records read"
PASSED, SHARD_MARKS = "numRecordsOut", "shardMarks"
KEYED = "__key_"
READ_METRIC = re.compile(rf"{READER.replace(' ', '_')}(?:__[^.]*)?\.({PASSED}|{SHARD_MARKS})")
"""PyFlink joins the names of functions that it runs in one operator. Flink counts the last one's output."""

NOTHING_READ_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class OperatorLoad:
    """`oldest_read_ms`: when (wall clock) the oldest event without an answer was read."""

    in_flight: int
    pending: int
    oldest_read_ms: int


class LabelledCounter:
    def __init__(self, group: MetricGroup, metric: str) -> None:
        self._group, self._label = group.add_group(metric), BY_NAME[metric].label
        self._series: dict[str, Counter] = {}
        self.seen: dict[str, int] = {}

    def set(self, counts: Mapping[str, int]) -> None:
        for value, count in counts.items():
            if count == self.seen.get(value):
                continue
            if value not in self._series:
                self._series[value] = self._group.add_group(self._label, value).counter("total")
            self._series[value].inc(count - self.seen.get(value, 0))
            self.seen[value] = count

    def count(self, value: str) -> None:
        name = label_value(value, self.seen)
        self.set({name: self.seen.get(name, 0) + 1})


class IntakeCounter:
    """Counts records and dead letters of a function in front of the operator `infer`.

    Flink gets each dead letter immediately, and records every half second, with the next one.
    """

    def __init__(self, runtime_context: RuntimeContext, clock: Clock) -> None:
        group = runtime_context.get_metrics_group().add_group(GROUP)
        self._marks = ActivityMarks(runtime_context)
        self._records = counter_of(runtime_context, "records")
        self._letters = counter_of(runtime_context, "dead_letters")
        self._causes = LabelledCounter(group, FAILURES)
        self._clock = clock
        self._unflushed = 0
        self._flushed_s = -math.inf

    def read(self) -> None:
        self._unflushed += 1
        if self._clock.monotonic_s() - self._flushed_s >= FLUSH_S:
            self.flush()

    def refuse(self, cause: str) -> None:
        self.flush()
        self._letters.inc()
        self._causes.count(cause)
        self._marks.answered()

    def flush(self) -> None:
        if self._unflushed:
            self._records.inc(self._unflushed)
            self._unflushed = 0
        self._flushed_s = self._clock.monotonic_s()


class FlinkMetrics:
    """The counters and gauges of one subtask, passed to Flink every half second: a call crosses into Java.

    Quantiles are of the last 30 to 60 seconds. `OLDEST` is never later than the read time of an event
    accepted before.
    """

    def __init__(
        self, group: MetricGroup, counts: InferenceCounters, load: Callable[[], OperatorLoad]
    ) -> None:
        self._named = named = group.add_group(GROUP)
        self._later: dict[str, Any] = {}
        self._counts = counts
        self._load = load
        self._counters = {name: named.counter(BY_NAME[name].exported[0]) for name in COUNTERS}
        self._seen = dict.fromkeys(COUNTERS, 0)
        self._failed = LabelledCounter(named, FAILURES)
        self._findings = LabelledCounter(named, FINDINGS)
        latencies = {CALL: counts.engine_s, EVENT: counts.event_s, FIRST_TOKEN: counts.first_token_s}
        if counts.commit_s is not None:
            latencies[COMMIT] = counts.commit_s
        self._latencies = [LatencyBuckets(named, name, latency) for name, latency in latencies.items()]
        self._in_flight = 0
        self._recent = RecentLatency(counts.engine_s), RecentLatency(counts.event_s)
        self._flushed_s = 0.0
        self._gauges = {name: number_gauge(named, BY_NAME[name].exported[0]) for name in GAUGES}

    def flush_if_due(self, now_s: float) -> None:
        replicas, scaling = self._counts.replicas, self._counts.scaling
        changed = replicas.changed or (scaling is not None and scaling.changed)
        if changed or now_s - self._flushed_s >= FLUSH_S:
            self.flush(now_s)

    def report_through(self, wake: Callable[[], None]) -> None:
        """Call `wake` on replica changes, so that they are flushed while no event arrives."""
        for each in self._of_replicas():
            each.notify = wake

    def stale(self) -> bool:
        return (
            self._in_flight > 0
            or self._failed.seen != self._counts.failed
            or (self._counts.cost_pico is not None and COST not in self._seen)
            or any(getattr(self._counts, name) != seen for name, seen in self._seen.items())
        )

    def flush(self, now_s: float) -> None:
        self._flushed_s = now_s
        counts = self._counts
        if counts.cost_pico is not None and COST not in self._counters:
            self._counters[COST], self._seen[COST] = self._named.counter(BY_NAME[COST].exported[0]), 0
        for name, counter in self._counters.items():
            value = getattr(counts, name)
            if value != self._seen[name]:
                counter.inc(value - self._seen[name])
                self._seen[name] = value
        self._failed.set(counts.failed)
        self._findings.set(counts.findings)
        for latency in self._latencies:
            latency.flush()
        load = self._load()
        engine, event = (latency.at(now_s) for latency in self._recent)
        self._in_flight = load.in_flight
        values = {
            "in_flight": load.in_flight,
            "pending": load.pending,
            OLDEST: load.oldest_read_ms / 1000,
            LOOKED: now_s if load.in_flight or load.pending else NOTHING_READ_MS / 1000,
            WAITED: counts.waited_s,
            CALL_P50: engine.quantile_s(0.5),
            CALL_P99: engine.quantile_s(0.99),
            EVENT_P50: event.quantile_s(0.5),
            EVENT_P99: event.quantile_s(0.99),
        }
        for name, gauge in self._gauges.items():
            gauge.update(values[name])
        for each in self._of_replicas():
            self._notify(each.values())

    def _of_replicas(self) -> tuple[ReplicasGauge | ScalingGauges, ...]:
        replicas, scaling = self._counts.replicas, self._counts.scaling
        return (replicas,) if scaling is None else (replicas, scaling)

    def _notify(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            if name not in self._later:
                # Only once known: a 0 would look like a decision, or an outage.
                self._later[name] = number_gauge(self._named, BY_NAME[name].exported[0])
            self._later[name].update(value)

    def report_oldest(self) -> None:
        self._gauges[OLDEST].update(self._load().oldest_read_ms / 1000)
