"""The figures of runs with known times."""

from __future__ import annotations

from bisect import bisect_right
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.stream.simulated_queue import SimulatedQueue
from tests.bench.stream.stream_runs import STAGES_S, even, event, lost, stream_run

from forebay.bench.records import EngineSample
from forebay.bench.stream.events import EventSlo, due_offsets
from forebay.bench.stream.figures import (
    PARTS,
    STAGES,
    lag_curve,
    lag_slope,
    mean_lag,
    stage_s,
    stream_figures,
)
from forebay.bench.stream.records import MOMENTS, MeasuredCheckpoint

moments = st.lists(st.floats(0, 1000), min_size=1, max_size=60).map(sorted)


@given(moments, st.floats(0, 20))
def test_lag_is_never_negative_if_answers_follow_events(due_s: list[float], took_s: float) -> None:
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


@pytest.mark.heavy
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


@pytest.mark.heavy
def test_overloaded_queue_is_detected() -> None:
    queue, found = SimulatedQueue(16, Random(8)), 0
    for _ in range(40):
        due_s = due_offsets(queue.load(16 * 1.1, times=4))
        slope = lag_slope(due_s, sorted(queue.done_s(due_s)))
        found += slope is not None and slope.grows(16 * 1.1)
    assert found >= 28


def test_growth_below_one_percent_is_ignored() -> None:
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


def test_each_stage_has_its_known_time() -> None:
    figures = stream_figures(stream_run(even(1000)))
    for (name, _), took_s in zip(STAGES.items(), STAGES_S, strict=True):
        found = figures.stages[name]
        assert (found.mean, found.percentiles[99]) == pytest.approx((took_s, took_s), abs=1e-9), name
    assert figures.latency["committed"].percentiles[50] == pytest.approx(sum(STAGES_S))
    assert figures.latency["answered"].percentiles[50] == pytest.approx(sum(STAGES_S[:6]))


def test_a_p99_needs_a_thousand_events() -> None:
    assert 99 not in stream_figures(stream_run(even(999))).latency["committed"].percentiles
    assert 99 in stream_figures(stream_run(even(1000))).latency["committed"].percentiles


def test_uncommitted_answers_do_not_count_as_goodput() -> None:
    events = [event(0, 0.0), event(1, 0.1, committed_s=None, results=0)]
    assert stream_figures(stream_run(events), EventSlo(within_s=9.0, until="answered")).goodput == 0.5


def test_doubled_results_are_counted() -> None:
    assert stream_figures(stream_run([event(0, 0.0, results=2), event(1, 1.0)])).doubled == 1


def test_checkpoints_and_samples_have_distributions() -> None:
    done = [MeasuredCheckpoint(n, n * 1.0, 0.02 * n, 1000 * n, 10) for n in (1, 2, 3)]
    samples = (EngineSample(0.0, {"running": 2.0, "watermark_delay_s": 5.5}), EngineSample(1.0, {}))
    failed = MeasuredCheckpoint(4, 4.0, 600.0, 0, 0, completed=False)
    figures = stream_figures(stream_run(even(3), checkpoints=(*done, failed), samples=samples))
    assert (figures.checkpoints, figures.failed_checkpoints) == (3, 1)
    assert figures.checkpoint["duration_s"].mean == pytest.approx(0.04)
    assert figures.checkpoint["state_bytes"].maximum == 3000
    assert figures.samples["running"].mean == 2.0
    assert figures.watermark_delay is not None
    assert figures.watermark_delay.mean == 5.5


def test_a_run_without_events_has_figures() -> None:
    figures = stream_figures(stream_run([]), EventSlo(within_s=1.0))
    assert (figures.offered, figures.goodput, figures.latency) == (0, None, {})


@given(moments, moments)
def test_the_curve_shows_the_lag_of_each_moment(due_s: list[float], done_s: list[float]) -> None:
    curve = lag_curve(due_s, done_s)
    for at_s, lag in curve:
        assert lag == bisect_right(due_s, at_s) - bisect_right(done_s, at_s)
    assert curve[-1][1] == len(due_s) - len(done_s)


def test_the_mean_is_the_area_below_the_curve() -> None:
    # 0 until 1, 1 until 3, 2 until 4, 1 until 10.
    assert mean_lag([1.0, 3.0], [4.0], 0.0, 10.0) == pytest.approx((0 + 2 + 2 + 6) / 10)
    assert mean_lag([1.0, 3.0], [4.0], 2.0, 4.0) == pytest.approx((1 + 2) / 2)


@pytest.mark.parametrize("due_s", [[0.1] * 100, [float(n) for n in range(PARTS)]])
def test_too_few_or_simultaneous_events_give_no_trend(due_s: list[float]) -> None:
    assert lag_slope(due_s, due_s) is None
