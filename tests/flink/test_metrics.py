"""Counters and histograms, and how they reach Flink's metric groups."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import pytest
from tests.harness.clock import ManualClock
from tests.harness.metric_group import Group

from forebay.flink.latency import WINDOW_S
from forebay.flink.metric_names import (
    BY_NAME,
    CALL_P50,
    CALL_P99,
    COST,
    EVENT_P50,
    LOOKED,
    MAX_LABEL_VALUES,
    METRICS,
    OLDEST,
    REPLICAS,
    read_name,
)
from forebay.flink.metrics import (
    COUNTERS,
    FLUSH_S,
    GAUGES,
    KV_COUNTERS,
    NOTHING_DUE_S,
    NOTHING_READ_MS,
    FlinkMetrics,
    InferenceCounters,
    IntakeCounter,
    OperatorLoad,
    ScalingGauges,
)
from forebay.records import Completion, KvHandover, Timing, Usage


class Load:
    def __init__(self) -> None:
        self.now = OperatorLoad(0, 0, NOTHING_READ_MS)

    def __call__(self) -> OperatorLoad:
        return self.now


def intake(group: Group, clock: ManualClock) -> IntakeCounter:
    return IntakeCounter(SimpleNamespace(get_metrics_group=lambda: group), clock)  # type: ignore[arg-type]


def completion(tokens: tuple[int, int, int], handover: KvHandover | None = None) -> Completion:
    usage, timing = Usage(*tokens), Timing(0.0, 1.0)
    return Completion(text="", finish_reason=None, usage=usage, timing=timing, handover=handover)


def test_counts_reach_the_forebay_group_once() -> None:
    group, counts, load = Group(), InferenceCounters(), Load()
    metrics = FlinkMetrics(group, counts, load)
    counts.accepted, counts.results, counts.waited_s = 5, 3, 0.25
    counts.answered(completion((10, 20, 4)))
    counts.answered(completion((1, 2, 0)))
    load.now = OperatorLoad(2, 7, 1234)
    for _ in range(3):
        metrics.flush(1.0)
    values = group.values()
    assert set(values) == {*COUNTERS, *GAUGES}
    expected = {
        "accepted": 5,
        "results": 3,
        "waited_seconds": 0.25,
        "prompt_tokens": 11,
        "completion_tokens": 22,
        "cached_tokens": 4,
        "in_flight": 2,
        "pending": 7,
        OLDEST: 1.234,
        LOOKED: 1.0,
    }
    assert {name: value for name, value in values.items() if value} == expected
    counts.results += 1
    metrics.flush(2.0)
    assert group.values()["results"] == 4


def test_costs_are_counted_once_a_call_has_had_a_price() -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    metrics.flush(1.0)
    assert COST not in group.values()
    counts.cost_pico = 1_999_999
    assert metrics.stale()
    metrics.flush(2.0)
    assert (group.values()[COST], metrics.stale()) == (1, False)
    counts.cost_pico += 1
    metrics.flush(3.0)
    assert group.values()[COST] == 2


def test_unchanged_counters_are_not_touched() -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    counts.results = 1
    for now_s in (1.0, 2.0):
        metrics.flush(now_s)
    updates = {name: number.updates for name, number in group.all().items() if number.updates}
    assert updates.pop("infer.forebay.results_total") == 1
    assert set(updates) == {f"infer.forebay.{BY_NAME[name].exported[0]}" for name in GAUGES}


def test_flush_is_due_after_half_a_second() -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    metrics.flush(100.0)
    seen = []
    for number, later_s in enumerate((0.0, FLUSH_S - 0.01, FLUSH_S)):
        counts.results = number + 1
        metrics.flush_if_due(100.0 + later_s)
        seen.append(group.values()["results"])
    assert seen == [0, 0, 3]


def test_scaling_is_flushed_immediately_once_wanted_is_known() -> None:
    group, counts, told = Group(), InferenceCounters(), list[str]()
    metrics = FlinkMetrics(group, counts, Load())
    counts.scaling = ScalingGauges()
    metrics.report_through(lambda: told.append("woken"))
    metrics.flush(100.0)
    found = group.values()
    assert (found["backlog_tokens"], found["next_deadline_seconds"]) == (0, NOTHING_DUE_S)
    assert "wanted_replicas" not in found
    for _ in range(2):
        counts.scaling.set(2, 1500, -3)
    assert told == ["woken"]
    metrics.flush_if_due(100.1)
    found = group.values()
    assert [found[name] for name in ("wanted_replicas", "backlog_tokens", "next_deadline_seconds")] == [
        2,
        1500,
        -3,
    ]


@pytest.mark.parametrize("handover", get_args(KvHandover))
def test_each_kv_handover_has_a_counter(handover: KvHandover) -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    counts.answered(completion((0, 0, 0), handover))
    counts.answered(completion((0, 0, 0)))
    metrics.flush(1.0)
    values = group.values()
    assert {name: values[name] for name in KV_COUNTERS.values() if values[name]} == {KV_COUNTERS[handover]: 1}


def test_replica_count_is_flushed_immediately_once_known() -> None:
    group, counts, told = Group(), InferenceCounters(), list[str]()
    metrics = FlinkMetrics(group, counts, Load())
    metrics.report_through(lambda: told.append("woken"))
    metrics.flush(100.0)
    assert REPLICAS not in group.values(), "0 would be an outage"
    for _ in range(2):
        counts.replicas.set(0)
    assert told == ["woken"]
    metrics.flush_if_due(100.1)
    assert group.values()[REPLICAS] == 0
    counts.replicas.set(2)
    metrics.flush_if_due(100.2)
    assert group.values()[REPLICAS] == 2


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
    counts.engine_s.extend([0.1] * 98 + [2.0] * 2)
    counts.event_s.extend([0.2] * 100)
    metrics.flush(WINDOW_S)
    values = group.values()
    assert values[CALL_P50] == pytest.approx(0.1, rel=0.02)
    assert values[CALL_P99] == pytest.approx(2, rel=0.02)
    assert values[EVENT_P50] == pytest.approx(0.2, rel=0.02)
    metrics.flush(2 * WINDOW_S - 1)
    assert group.values()[CALL_P50] > 0
    metrics.flush(2 * WINDOW_S)
    metrics.flush(3 * WINDOW_S)
    assert group.values()[CALL_P50] == 0


def test_last_look_is_published_while_in_flight() -> None:
    group, load = Group(), Load()
    metrics = FlinkMetrics(group, InferenceCounters(), load)
    for load.now, now_s, looked_s in (
        (OperatorLoad(1, 0, 1234), 1.0, 1.0),
        (OperatorLoad(0, 1, 1234), 2.5, 2.5),
        (OperatorLoad(0, 0, NOTHING_READ_MS), 3.0, NOTHING_READ_MS / 1000),
    ):
        metrics.flush(now_s)
        assert group.values()[LOOKED] == looked_s


def test_new_wait_is_published_before_the_next_flush() -> None:
    group, load = Group(), Load()
    metrics = FlinkMetrics(group, InferenceCounters(), load)
    metrics.flush(1.0)
    assert group.values()[OLDEST] == NOTHING_READ_MS / 1000
    load.now = OperatorLoad(1, 0, 1234)
    metrics.report_oldest()
    assert group.values()[OLDEST] == 1.234


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
    values = group.values()
    found = {name: number for name, number in values.items() if name.startswith("failures")}
    assert found == {"failures_timeout": 2, "failures_other": 2, "failures_answer_cut": 1}
    assert not metrics.stale()


def test_number_of_cause_counters_is_bounded() -> None:
    counts = InferenceCounters()
    for number in range(3 * MAX_LABEL_VALUES):
        counts.fail(f"cause_{number}")
    assert len(counts.failed) == MAX_LABEL_VALUES + 1
    assert sum(counts.failed.values()) == 3 * MAX_LABEL_VALUES


def test_dead_letters_before_the_operator_are_counted_by_cause() -> None:
    group = Group("clock")
    letters = intake(group, ManualClock())
    for cause in ("late", "malformed_record", "late"):
        letters.read()
        letters.refuse(cause)
    assert group.values() == {
        "records": 3,
        "dead_letters": 3,
        "failures_late": 2,
        "failures_malformed_record": 1,
    }
    updates = {name: number.updates for name, number in group.all().items()}
    assert updates["clock.forebay.failures.cause.malformed_record.total"] == 1, "unchanged since"


def test_records_reach_flink_every_half_second() -> None:
    group, clock = Group("clock"), ManualClock()
    records = intake(group, clock)
    seen = []
    for later_s in (0.0, 0.1, FLUSH_S - 0.2, 0.1, 0.0):
        clock.advance(later_s)
        records.read()
        seen.append(group.values()["records"])
    assert seen == [1, 1, 1, 4, 4]
    records.flush()
    assert group.values()["records"] == 5


def test_unchanged_label_values_are_not_touched() -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    counts.fail("timeout")
    for now_s in (1.0, 2.0):
        metrics.flush(now_s)
    assert group.all()["infer.forebay.failures.cause.timeout.total"].updates == 1


def test_replica_gauges_have_the_tables_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BY_NAME, REPLICAS, replace(BY_NAME[REPLICAS], name="renamed"))
    group, counts = Group(), InferenceCounters()
    counts.replicas.set(2)
    FlinkMetrics(group, counts, Load()).flush(1.0)
    assert group.all()["infer.forebay.renamed"].value == 2


def test_findings_are_counted_by_kind() -> None:
    group, counts = Group(), InferenceCounters()
    metrics = FlinkMetrics(group, counts, Load())
    for kind in ("turn", "turn", "ended"):
        counts.find(kind)
    metrics.flush(1.0)
    values = group.values()
    assert (values["findings_turn"], values["findings_ended"]) == (2, 1)


def test_metric_names_follow_prometheus() -> None:
    for each in METRICS:
        for name in each.exported:
            assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
            assert not re.search(r"_(ms|us|s|millis\w*|percent|ppm)(_|$)", name), "base units"
            assert name.endswith("_total") == (each.kind == "counter")
        assert ("seconds" in each.name) == (each.unit in ("seconds", "Unix time"))


@pytest.mark.parametrize(
    ("identifier", "key"),
    [
        ("infer.forebay.results_total", "results"),
        ("a.forebay.b.forebay.in_flight", "in_flight"),
        ("infer.forebay.failures.cause.timeout.total", "failures_timeout"),
        ("infer.forebay.failures", None),
        ("infer.forebay.results_total.cause.x.total", None),
        ("infer.forebay.results", None),
        ("infer.forebay.event_seconds.count", None),
        ("infer.results_total", None),
        ("results_total", None),
    ],
)
def test_flinks_identifiers_are_read(identifier: str, key: str | None) -> None:
    found = read_name(identifier)
    assert (found and found[1]) == key
