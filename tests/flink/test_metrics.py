"""Counters and histograms, and how they reach Flink's metric groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.flink.metrics import (
    COST,
    COUNTERS,
    FAILED,
    FLUSH_S,
    GAUGES,
    KV_COUNTERS,
    LARGEST_S,
    MAX_CAUSES,
    NOTHING_DUE_S,
    NOTHING_READ_MS,
    RELATIVE_ERROR,
    REPLICAS,
    SMALLEST_S,
    WINDOW_S,
    FlinkMetrics,
    InferenceCounters,
    LatencyHistogram,
    OperatorLoad,
    ScalingGauges,
)
from forebay.records import Completion, KvHandover, Timing, Usage


class Number:
    def __init__(self) -> None:
        self.value = 0
        self.updates = 0

    def inc(self, n: int = 1) -> None:
        self.value += n
        self.updates += 1

    def update(self, value: int) -> None:
        self.value = value
        self.updates += 1


class Group:
    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.counters: dict[str, Number] = {}
        self.distributions: dict[str, Number] = {}
        self.gauges: dict[str, Callable[[], int]] = {}

    def add_group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group())

    def counter(self, name: str) -> Number:
        return self.counters.setdefault(name, Number())

    def distribution(self, name: str) -> Number:
        return self.distributions.setdefault(name, Number())

    def gauge(self, name: str, read: Callable[[], int]) -> None:
        self.gauges[name] = read

    def values(self) -> dict[str, int]:
        numbers = {**self.counters, **self.distributions}
        return {name: number.value for name, number in numbers.items()}


class Load:
    def __init__(self) -> None:
        self.now = OperatorLoad(0, 0, NOTHING_READ_MS)

    def __call__(self) -> OperatorLoad:
        return self.now


def completion(tokens: tuple[int, int, int], handover: KvHandover | None = None) -> Completion:
    usage, timing = Usage(*tokens), Timing(0.0, 1.0)
    return Completion(text="", finish_reason=None, usage=usage, timing=timing, handover=handover)


def test_counts_reach_the_forebay_group_once() -> None:
    group, counts, load = Group(), InferenceCounters(), Load()
    metrics = FlinkMetrics(group, counts, load)
    counts.accepted, counts.results, counts.waited_ms = 5, 3, 40
    counts.answered(completion((10, 20, 4)))
    counts.answered(completion((1, 2, 0)))
    load.now = OperatorLoad(2, 7, 1234)
    for _ in range(3):
        metrics.flush(1.0)
    values = group.groups["forebay"].values()
    assert set(values) == {*COUNTERS, *GAUGES}
    expected = {
        "accepted": 5,
        "results": 3,
        "waited_ms": 40,
        "prompt_tokens": 11,
        "completion_tokens": 22,
        "cached_tokens": 4,
        "in_flight": 2,
        "pending": 7,
        "oldest_read_ms": 1234,
        "looked_ms": 1000,
    }
    assert {name: value for name, value in values.items() if value} == expected
    counts.results += 1
    metrics.flush(2.0)
    assert group.groups["forebay"].values()["results"] == 4


def test_costs_are_counted_once_a_call_has_had_a_price() -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    metrics.flush(1.0)
    assert COST not in group.groups["forebay"].counters
    counts.cost_pico = 1_999_999
    assert metrics.stale()
    metrics.flush(2.0)
    assert (group.groups["forebay"].values()[COST], metrics.stale()) == (1, False)
    counts.cost_pico += 1
    metrics.flush(3.0)
    assert group.groups["forebay"].values()[COST] == 2


def test_unchanged_counters_are_not_touched() -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    counts.results = 1
    for now_s in (1.0, 2.0):
        metrics.flush(now_s)
    updates = {name: number.updates for name, number in group.groups["forebay"].counters.items()}
    assert updates == dict.fromkeys(COUNTERS, 0) | {"results": 1}


def test_metrics_use_no_callbacks() -> None:
    # Flink would do so on a thread of its own.
    group = Group()
    FlinkMetrics(group, InferenceCounters(), Load())
    named = group.groups["forebay"]
    assert (set(named.gauges), set(named.distributions)) == (set(), set(GAUGES))


def test_flush_is_due_after_half_a_second() -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    metrics.flush(100.0)
    seen = []
    for number, later_s in enumerate((0.0, FLUSH_S - 0.01, FLUSH_S)):
        counts.results = number + 1
        metrics.flush_if_due(100.0 + later_s)
        seen.append(group.groups["forebay"].values()["results"])
    assert seen == [0, 0, 3]


def test_scaling_is_flushed_immediately_once_wanted_is_known() -> None:
    group, counts, told = Group(), InferenceCounters(), list[str]()
    metrics = FlinkMetrics(group, counts, Load())
    counts.scaling = ScalingGauges()
    metrics.report_through(lambda: told.append("woken"))
    metrics.flush(100.0)
    found = group.groups["forebay"].values()
    assert (found["backlog_tokens"], found["next_deadline_s"]) == (0, NOTHING_DUE_S)
    assert "wanted_replicas" not in found
    for _ in range(2):
        counts.scaling.set(2, 1500, -3)
    assert told == ["woken"]
    metrics.flush_if_due(100.1)
    found = group.groups["forebay"].values()
    assert [found[name] for name in ("wanted_replicas", "backlog_tokens", "next_deadline_s")] == [2, 1500, -3]


@pytest.mark.parametrize("handover", get_args(KvHandover))
def test_each_kv_handover_has_a_counter(handover: KvHandover) -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    counts.answered(completion((0, 0, 0), handover))
    counts.answered(completion((0, 0, 0)))
    metrics.flush(1.0)
    values = group.groups["forebay"].values()
    assert {name: values[name] for name in KV_COUNTERS.values() if values[name]} == {KV_COUNTERS[handover]: 1}


def test_replica_count_is_flushed_immediately_once_known() -> None:
    group, counts, told = Group(), InferenceCounters(), list[str]()
    metrics = FlinkMetrics(group, counts, Load())
    metrics.report_through(lambda: told.append("woken"))
    metrics.flush(100.0)
    assert REPLICAS not in group.groups["forebay"].values(), "0 would be an outage"
    for _ in range(2):
        counts.replicas.set(0)
    assert told == ["woken"]
    metrics.flush_if_due(100.1)
    assert group.groups["forebay"].values()[REPLICAS] == 0
    counts.replicas.set(2)
    metrics.flush_if_due(100.2)
    assert group.groups["forebay"].values()[REPLICAS] == 2


def test_metrics_are_stale_until_flushed_and_nothing_in_flight() -> None:
    group, counts, load = Group(), InferenceCounters(), Load()
    metrics = FlinkMetrics(group, counts, load)
    assert not metrics.stale()
    counts.retries += 1
    assert metrics.stale()
    load.now = OperatorLoad(1, 0, NOTHING_READ_MS)
    metrics.flush(1.0)
    assert metrics.stale()
    load.now = OperatorLoad(0, 0, NOTHING_READ_MS)
    metrics.flush(2.0)
    assert not metrics.stale()


def test_latencies_cover_one_or_two_windows() -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    named = group.add_group("forebay")
    counts.engine_s.extend([0.1] * 98 + [2.0] * 2)
    counts.event_s.extend([0.2] * 100)
    metrics.flush(WINDOW_S)
    values = named.values()
    assert values["engine_p50_us"] == pytest.approx(100_000, rel=0.02)
    assert values["engine_p99_us"] == pytest.approx(2_000_000, rel=0.02)
    assert values["event_p50_us"] == pytest.approx(200_000, rel=0.02)
    metrics.flush(2 * WINDOW_S - 1)
    assert named.values()["engine_p50_us"] > 0
    metrics.flush(2 * WINDOW_S)
    metrics.flush(3 * WINDOW_S)
    assert named.values()["engine_p50_us"] == 0


def test_last_look_is_published_while_in_flight() -> None:
    group, load = Group(), Load()
    metrics = FlinkMetrics(group, InferenceCounters(), load)
    for load.now, now_s, looked_ms in (
        (OperatorLoad(1, 0, 1234), 1.0, 1000),
        (OperatorLoad(0, 1, 1234), 2.5, 2500),
        (OperatorLoad(0, 0, NOTHING_READ_MS), 3.0, NOTHING_READ_MS),
    ):
        metrics.flush(now_s)
        assert group.groups["forebay"].values()["looked_ms"] == looked_ms


def test_new_wait_is_published_before_the_next_flush() -> None:
    group, load = Group(), Load()
    metrics = FlinkMetrics(group, InferenceCounters(), load)
    metrics.flush(1.0)
    assert group.groups["forebay"].values()["oldest_read_ms"] == NOTHING_READ_MS
    load.now = OperatorLoad(1, 0, 1234)
    metrics.report_oldest()
    assert group.groups["forebay"].values()["oldest_read_ms"] == 1234


def test_each_failure_cause_has_a_counter() -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    metrics.flush(1.0)
    assert not metrics.stale()
    for cause in ("timeout", "timeout", "a word of one's own", "x" * 99, "answer_cut"):
        counts.fail(cause)
    assert metrics.stale()
    for _ in range(2):
        metrics.flush(2.0)
    values = group.groups["forebay"].values()
    found = {name: number for name, number in values.items() if name.startswith(FAILED)}
    assert found == {"failed_timeout": 2, "failed_other": 2, "failed_answer_cut": 1}
    assert not metrics.stale()


def test_number_of_cause_counters_is_bounded() -> None:
    counts = InferenceCounters()
    for number in range(3 * MAX_CAUSES):
        counts.fail(f"cause_{number}")
    assert len(counts.failed) == MAX_CAUSES + 1
    assert sum(counts.failed.values()) == 3 * MAX_CAUSES


durations = st.floats(SMALLEST_S, LARGEST_S)


@given(st.lists(durations, min_size=1, max_size=200), st.floats(0, 1))
def test_quantile_is_within_one_percent(values: list[float], q: float) -> None:
    histogram = LatencyHistogram()
    histogram.extend(values)
    exact = sorted(values)[max(1, math.ceil(q * len(values))) - 1]
    assert histogram.quantile_s(q) == pytest.approx(exact, rel=RELATIVE_ERROR * 1.001)


@given(st.lists(durations, max_size=50), st.lists(durations, max_size=50))
def test_merged_histograms_equal_one(left: list[float], right: list[float]) -> None:
    merged, other, whole = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
    merged.extend(left)
    other.extend(right)
    merged.merge(other)
    whole.extend(left + right)
    assert [merged.quantile_s(q) for q in (0, 0.5, 0.99, 1)] == [
        whole.quantile_s(q) for q in (0, 0.5, 0.99, 1)
    ]
    assert (merged.count, merged.max_s) == (whole.count, whole.max_s)
    assert merged.sum_s == pytest.approx(whole.sum_s)


def test_empty_histogram_is_zero() -> None:
    empty = LatencyHistogram()
    assert (empty.quantile_s(0.5), empty.max_s, empty.count) == (0.0, 0.0, 0)


def test_values_out_of_range_are_clamped() -> None:
    histogram = LatencyHistogram()
    histogram.extend([0.0, -1.0, 1e9])
    assert histogram.quantile_s(0.0) == pytest.approx(SMALLEST_S, rel=0.02)
    assert histogram.quantile_s(1.0) == pytest.approx(LARGEST_S, rel=0.02)


def test_memory_does_not_grow_with_the_number_of_values() -> None:
    histogram = LatencyHistogram()
    for i in range(20_000):
        histogram.add(10 ** (i % 12 - 6) * (1 + i / 20_000))
    assert len(histogram._counts) < math.log(LARGEST_S / SMALLEST_S) / (2 * RELATIVE_ERROR) + 2
