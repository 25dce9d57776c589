"""Quantiles and buckets of latencies."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.metric_group import Group

from forebay.flink.latency import (
    BOUNDS_S,
    LARGEST_S,
    RELATIVE_ERROR,
    SMALLEST_S,
    LatencyBuckets,
    LatencyHistogram,
)

durations = st.floats(SMALLEST_S, LARGEST_S)


@given(st.lists(durations, min_size=1, max_size=200), st.floats(0, 1))
def test_quantile_is_within_one_percent(values: list[float], q: float) -> None:
    histogram = LatencyHistogram()
    histogram.extend(values)
    exact = sorted(values)[max(1, math.ceil(q * len(values))) - 1]
    assert histogram.quantile_s(q) == pytest.approx(exact, rel=RELATIVE_ERROR * 1.001)


@given(st.lists(durations, max_size=50), st.lists(durations, max_size=50), st.floats(0, 1))
def test_difference_to_a_copy_has_only_later_values(early: list[float], late: list[float], q: float) -> None:
    both, alone = LatencyHistogram(), LatencyHistogram()
    both.extend(early)
    before = both.copy()
    both.extend(late)
    alone.extend(late)
    assert both.since(before).quantile_s(q) == alone.quantile_s(q)


@given(st.lists(durations, max_size=200))
def test_buckets_are_cumulative_within_two_percent(values: list[float]) -> None:
    histogram = LatencyHistogram()
    histogram.extend(values)
    found = histogram.up_to(BOUNDS_S)
    for bound_s, count in zip(BOUNDS_S, found, strict=True):
        least = sum(value <= bound_s * (1 - 1e-9) for value in values)
        assert least <= count <= sum(value <= bound_s * (1 + 2.1 * RELATIVE_ERROR) for value in values)


def test_empty_histogram_is_zero() -> None:
    assert LatencyHistogram().quantile_s(0.5) == 0.0
    assert LatencyHistogram().up_to((1.0,)) == [0]


def test_latencies_are_exported_as_cumulative_counters() -> None:
    group, latency = Group(), LatencyHistogram()
    buckets = LatencyBuckets(group, "call_seconds", latency)  # type: ignore[arg-type]
    for value_s in (0.02, 0.02, 3.0, 1e9):
        latency.add(value_s)
        buckets.flush()
    values = {name.removeprefix("infer.call_seconds."): n.value for name, n in group.all().items()}
    assert (values.pop("count"), values.pop("sum")) == (4, pytest.approx(LARGEST_S + 3.04))
    assert [name for name, count in values.items() if count == 2] == [
        f"le.{bound}.bucket" for bound in ("0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5")
    ]
    assert (values["le.0.01.bucket"], values["le.1800.bucket"], values["le.+Inf.bucket"]) == (0, 3, 4)


def test_values_out_of_range_are_clamped() -> None:
    histogram = LatencyHistogram()
    histogram.extend([0.0, -1.0])
    assert histogram.sum_s == 2 * SMALLEST_S
    histogram.add(1e9)
    assert histogram.quantile_s(0.0) == pytest.approx(SMALLEST_S, rel=0.02)
    assert histogram.quantile_s(1.0) == pytest.approx(LARGEST_S, rel=0.02)


def test_memory_does_not_grow_with_the_number_of_values() -> None:
    histogram = LatencyHistogram()
    for i in range(20_000):
        histogram.add(10 ** (i % 12 - 6) * (1 + i / 20_000))
    assert len(histogram._counts) < math.log(LARGEST_S / SMALLEST_S) / (2 * RELATIVE_ERROR) + 2
