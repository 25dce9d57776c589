"""The figures of runs with known times."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.stream.simulated_queue import SimulatedQueue
from tests.bench.stream.stream_runs import STAGES_S, even, event, lost, stream_run

from forebay.bench.stream.events import EventSlo, due_offsets
from forebay.bench.stream.figures import (
    STAGES,
    lag_curve,
    lag_slope,
    stage_s,
    stream_figures,
)
from forebay.bench.stream.records import MOMENTS

moments = st.lists(st.floats(0, 1000), min_size=1, max_size=60).map(sorted)


@given(moments, st.floats(0, 20))
def test_a_lag_is_never_negative_where_answers_follow_events(due_s: list[float], took_s: float) -> None:
    assert all(lag >= 0 for _, lag in lag_curve(due_s, [at_s + took_s for at_s in due_s]))


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


def test_the_stages_of_an_event_are_its_whole_latency() -> None:
    one = event(0, 3.0)
    assert one.committed_s is not None
    took_s = [stage_s(one, name) for name in STAGES]
    assert sum(each for each in took_s if each is not None) == pytest.approx(one.committed_s - one.due_s)
    # Each begins where the one before ends.
    assert [begin for begin, _, _ in STAGES.values()] == list(MOMENTS[:-1])
    assert [end for _, end, _ in STAGES.values()] == list(MOMENTS[1:])


def test_rates_count_from_the_first_event() -> None:
    figures = stream_figures(stream_run(even(101)))
    assert figures.answered_per_s == pytest.approx(101 / (10.0 + sum(STAGES_S[:6])))
    assert figures.committed_per_s == pytest.approx(101 / (10.0 + sum(STAGES_S)))


def test_failures_count_against_goodput() -> None:
    events = [
        event(0, 0.0),
        event(1, 0.1, committed_s=5.0),
        lost(2, 0.2),
        lost(3, 0.3, error="too_long: the prompt"),
    ]
    figures = stream_figures(stream_run(events), EventSlo(within_s=1.0))
    assert (figures.committed, figures.lost, figures.failed) == (2, 1, 1)
    assert figures.goodput == 0.25
    assert figures.good_per_s == pytest.approx(1 / 5.0)
    answered = stream_figures(stream_run(events), EventSlo(within_s=1.0, until="answered"))
    assert answered.goodput == 0.5
