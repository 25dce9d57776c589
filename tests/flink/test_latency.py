"""The histogram of durations."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.flink.metrics import LARGEST_S, RELATIVE_ERROR, SMALLEST_S, LatencyHistogram

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
