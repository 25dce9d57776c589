"""Percentiles and intervals against numpy and printed tables, and their coverage."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.statistics import (
    bootstrap_difference,
    difference_interval,
    mean_interval,
    percentile,
    student_t,
    suffices,
)

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(SAMPLES, st.floats(0, 100))
def test_a_percentile_is_numpys(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert percentile(sorted(values), percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(SAMPLES, st.floats(0, 100), st.floats(0, 100))
def test_percentiles_rise_and_stay_within_the_samples(values: list[float], one: float, other: float) -> None:
    ordered = sorted(values)
    low, high = sorted((one, other))
    assert ordered[0] <= percentile(ordered, low) <= percentile(ordered, high) <= ordered[-1]


@pytest.mark.parametrize(
    ("percent", "least"),
    [(50, 1), (75, 40), (25, 40), (90, 100), (95, 200), (99, 1_000), (1, 1_000), (99.9, 10_000)],
)
def test_a_percentile_needs_ten_samples_beyond_it(percent: float, least: int) -> None:
    assert suffices(least, percent)
    assert not suffices(least - 1, percent)


# Fisher and Yates, "Statistical Tables", as printed in many places.
TABLE = {
    (1, 0.95): 12.706,
    (2, 0.95): 4.303,
    (3, 0.95): 3.182,
    (4, 0.95): 2.776,
    (5, 0.95): 2.571,
    (9, 0.95): 2.262,
    (30, 0.95): 2.042,
    (120, 0.95): 1.980,
    (1, 0.99): 63.657,
    (4, 0.99): 4.604,
    (9, 0.90): 1.833,
}


@pytest.mark.parametrize(("row", "t"), TABLE.items())
def test_students_t_equals_the_tables(row: tuple[int, float], t: float) -> None:
    freedom, confidence = row
    assert student_t(confidence, freedom) == pytest.approx(t, abs=5.1e-4)


def test_an_interval_of_known_samples() -> None:
    # Mean 3, s² = 2.5, t(4) = 2.776: half a width of 2.776 · √(2.5 / 5).
    found = mean_interval([1, 2, 3, 4, 5])
    assert found is not None
    assert (found.mean, found.count) == (3, 5)
    assert found.high - 3 == pytest.approx(1.9632, abs=1e-4)
    assert 3 - found.low == pytest.approx(found.high - 3)


def test_welchs_interval_of_known_samples() -> None:
    # Variances 2.5 and 10, five each: √(0.5 + 2) = 1.5811; 2.5² / (0.5² / 4 + 2² / 4) = 5.88 degrees of
    # freedom, which are 5: t = 2.571.
    found = difference_interval([1, 2, 3, 4, 5], [2, 4, 6, 8, 10])
    assert found is not None
    assert (found.mean, found.count) == (3, 10)
    assert found.high - 3 == pytest.approx(2.571 * 1.5811, abs=1e-3)


@pytest.mark.heavy
def test_intervals_have_their_nominal_coverage() -> None:
    draw = random.Random(16)
    hits = difference_hits = 0
    for _ in range(2000):
        few, more = [draw.gauss(10, 2) for _ in range(4)], [draw.gauss(13, 5) for _ in range(6)]
        found, difference = mean_interval(few), difference_interval(few, more)
        assert found is not None
        assert difference is not None
        hits += found.low <= 10 <= found.high
        difference_hits += difference.low <= 3 <= difference.high
    # 95 % of 2,000 is 1,900, give or take 20; Welch's are rounded to the wider side.
    assert 1860 <= hits <= 1940
    assert 1860 <= difference_hits <= 1980


def draws(mean: float, count: int, seed: int, alike: float = 0.0) -> list[float]:
    chance, found, last = random.Random(seed), [], 0.0
    for _ in range(count):
        last = alike * last + (1 - alike**2) ** 0.5 * chance.gauss(0, 1)
        found.append(mean + last)
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("percent", [None, 50, 90])
def test_a_difference_is_within_its_interval(percent: float | None) -> None:
    low, high = bootstrap_difference(draws(10, 2000, 0), draws(11, 1500, 1), percent)
    assert 0.8 < low < 1.0 < high < 1.2


@pytest.mark.heavy
@pytest.mark.parametrize("alike", [0.0, 0.7])
def test_interval_coverage_is_as_claimed(alike: float) -> None:
    """For equal runs, 95 of 100 intervals contain 0; slightly fewer with correlated neighbours."""
    rounds = 200
    held = 0
    for seed in range(rounds):
        low, high = bootstrap_difference(
            draws(0, 400, 2 * seed, alike), draws(0, 400, 2 * seed + 1, alike), None
        )
        held += low <= 0 <= high
    assert held / rounds >= (0.91 if alike == 0 else 0.86)
    assert held / rounds < 1


@pytest.mark.heavy
def test_many_samples_are_drawn_in_parts() -> None:
    low, high = bootstrap_difference(draws(0, 30_000, 0), draws(0.5, 30_000, 1), 99)
    assert 0.3 < low < 0.5 < high < 0.7


@pytest.mark.parametrize(("confidence", "freedom"), [(0, 3), (1, 3), (1.5, 3), (0.95, 0)])
def test_student_t_needs_samples(confidence: float, freedom: int) -> None:
    with pytest.raises(ValueError, match="degrees of freedom"):
        student_t(confidence, freedom)


def test_single_repeat_has_no_interval() -> None:
    assert mean_interval([3.0]) is None
    assert difference_interval([3.0], [1.0, 2.0]) is None
    assert difference_interval([1.0, 2.0], [3.0]) is None


def test_equal_repeats_have_an_empty_interval() -> None:
    found = difference_interval([2.0, 2.0], [3.0, 3.0])
    assert found is not None
    assert (found.low, found.mean, found.high) == (1.0, 1.0, 1.0)


def test_the_same_seed_gives_the_same_interval() -> None:
    a, b = draws(10, 200, 0), draws(11, 200, 1)
    assert bootstrap_difference(a, b, None) == bootstrap_difference(a, b, None)
    assert bootstrap_difference(a, b, None) != bootstrap_difference(a, b, None, seed=1)


def test_equal_samples_have_no_difference() -> None:
    low, high = bootstrap_difference([3.0] * 50, [3.0] * 20, 50)
    assert (low, high) == (0.0, 0.0)
    assert bootstrap_difference([1.0], [4.0], None) == (3.0, 3.0)
