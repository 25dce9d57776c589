"""How far a pipeline is behind, and whether that grows."""

from __future__ import annotations

from bisect import bisect_right
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.stream.simulated_queue import SimulatedQueue

from forebay.bench.stream.events import due_offsets
from forebay.bench.stream.figures import PARTS, lag_curve, lag_slope, mean_lag

moments = st.lists(st.floats(0, 1000), min_size=1, max_size=60).map(sorted)


@given(moments, moments)
def test_the_curve_shows_the_lag_of_each_moment(due_s: list[float], done_s: list[float]) -> None:
    curve = lag_curve(due_s, done_s)
    for at_s, lag in curve:
        assert lag == bisect_right(due_s, at_s) - bisect_right(done_s, at_s)
    assert curve[-1][1] == len(due_s) - len(done_s)


@given(moments, st.floats(0, 20))
def test_a_lag_is_never_negative_where_answers_follow_events(due_s: list[float], took_s: float) -> None:
    assert all(lag >= 0 for _, lag in lag_curve(due_s, [at_s + took_s for at_s in due_s]))


def test_the_mean_is_the_area_below_the_curve() -> None:
    # 0 until 1, 1 until 3, 2 until 4, 1 until 10.
    assert mean_lag([1.0, 3.0], [4.0], 0.0, 10.0) == pytest.approx((0 + 2 + 2 + 6) / 10)
    assert mean_lag([1.0, 3.0], [4.0], 2.0, 4.0) == pytest.approx((1 + 2) / 2)


def test_a_server_that_keeps_up_has_no_growing_lag() -> None:
    dice = Random(1)
    due_s = sorted(dice.uniform(0, 60) for _ in range(600))
    done_s = sorted(at_s + dice.uniform(0.1, 2.0) for at_s in due_s)
    slope = lag_slope(due_s, done_s)
    assert slope is not None
    assert not slope.grows(10.0)
    assert abs(slope.per_s) < 0.3


def test_a_lag_that_grows_is_reported_with_its_rate() -> None:
    # Ten events a second, and eight answers.
    due_s = [index / 10 for index in range(600)]
    done_s = [index / 8 for index in range(600)]
    slope = lag_slope(due_s, done_s)
    assert slope is not None
    assert slope.low <= slope.per_s <= slope.high
    assert slope.per_s == pytest.approx(2.0, rel=0.02)
    assert slope.grows(10.0)


@pytest.mark.parametrize(("load", "wrong"), [(0.7, 0.0), (0.95, 0.03)])
def test_a_steady_queue_seldom_seems_to_grow(load: float, wrong: float) -> None:
    queue, rate_per_s = SimulatedQueue(16, Random(7)), 16 * load
    grown = 0
    for _ in range(200):
        due_s = due_offsets(queue.load(rate_per_s))
        slope = lag_slope(due_s, sorted(queue.done_s(due_s)))
        assert slope is not None
        grown += slope.grows(rate_per_s)
    assert grown <= wrong * 200


def test_a_queue_that_gets_too_much_is_found_out() -> None:
    queue, found = SimulatedQueue(16, Random(8)), 0
    for _ in range(40):
        due_s = due_offsets(queue.load(16 * 1.1, times=4))
        slope = lag_slope(due_s, sorted(queue.done_s(due_s)))
        found += slope is not None and slope.grows(16 * 1.1)
    assert found >= 28


def test_a_growth_of_less_than_a_hundredth_is_none() -> None:
    due_s = [index / 10 for index in range(6000)]
    slope = lag_slope(due_s, [at_s * 1.005 for at_s in due_s])
    assert slope is not None
    assert slope.low > 0
    assert not slope.grows(10.0)


@pytest.mark.parametrize("seconds", [10, 20, 60])
def test_a_pipeline_that_fills_at_first_has_no_growing_lag(seconds: int) -> None:
    # Each answer takes four seconds.
    due_s = [index / 10 for index in range(10 * seconds)]
    slope = lag_slope(due_s, [at_s + 4 for at_s in due_s])
    assert slope is not None
    assert slope.per_s == pytest.approx(0, abs=1e-6)


def test_without_an_answer_in_the_first_half_nothing_is_reported() -> None:
    due_s = [index / 10 for index in range(100)]
    assert lag_slope(due_s, [at_s + 6 for at_s in due_s]) is None
    assert lag_slope(due_s, []) is None


@pytest.mark.parametrize("due_s", [[0.1] * 100, [float(n) for n in range(PARTS)]])
def test_too_few_events_or_all_at_once_tell_nothing(due_s: list[float]) -> None:
    assert lag_slope(due_s, due_s) is None
