"""From observed events to the figures of a report."""

from __future__ import annotations

import pytest
from benchmarks.workload import Checkpoint, Seen, Workload, figures, quantile, schedule
from hypothesis import given
from hypothesis import strategies as st


def load(events: int, rate_per_s: float | None, margin: float = 0.0) -> Workload:
    return Workload(events=events, rate_per_s=rate_per_s, capacity=8, url=None, margin=margin)


def at_rate(index: int, *, late_s: float = 0.0, added_s: float = 0.0) -> Seen:
    """Event `index` of ten per second, sent `late_s` after it was due; its call takes half a second."""
    due_s = 100.0 + index / 10
    return Seen(index, due_s + late_s, due_s + late_s + 0.5 + added_s, 0.5, 16)


def test_added_time_is_the_time_outside_the_call() -> None:
    seen = [at_rate(i, added_s=0.002 if i < 95 else 0.5) for i in range(100)]
    found = figures(load(100, 10.0), seen)
    assert found.added_ms_p50 == pytest.approx(2.0, abs=1e-6)
    assert found.added_ms_p99 == pytest.approx(500.0, abs=1e-6)
    assert found.added_ms[0] == pytest.approx(2.0)
    assert len(found.added_ms) == 101
    assert found.answered == 100


def test_backpressured_source_counts_as_latency() -> None:
    seen = [at_rate(i, late_s=0.0 if i < 50 else 1.0) for i in range(100)]
    assert figures(load(100, 10.0), seen).added_ms_p99 == pytest.approx(1000.0, abs=1e-6)
    # Without a rate an event is due when it is sent.
    assert figures(load(100, None), seen).added_ms_p99 == pytest.approx(0.0, abs=1e-6)


def test_rates_and_the_number_in_flight_are_those_of_the_counted_span() -> None:
    found = figures(load(100, 10.0), [at_rate(i) for i in range(100)])
    assert found.events_per_s == pytest.approx(10.0)
    assert found.tokens_per_s == pytest.approx(160.0)
    # Little's law: ten a second that take half a second each.
    assert found.in_flight_mean == pytest.approx(5.0)


def test_checkpoints_count_if_triggered_inside_the_span() -> None:
    seen = [at_rate(i) for i in range(100)]
    checkpoints = [
        Checkpoint(at_s, took) for at_s, took in ((99.0, 9000), (102.0, 20), (105.0, 40), (200.0, 1))
    ]
    found = figures(load(100, 10.0), seen, checkpoints)
    assert (found.checkpoints, found.checkpoint_ms_p99) == (2, 40)
    assert figures(load(100, 10.0), seen).checkpoint_ms_p99 is None


def test_duplicate_result_counts_as_one_answered_event() -> None:
    assert figures(load(3, 10.0), [at_rate(0), at_rate(1), at_rate(1)]).answered == 2


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(0, 100))
def test_a_quantile_is_the_smallest_value_that_the_share_does_not_exceed(
    values: list[float], share: int
) -> None:
    ordered = sorted(values)
    found = quantile(ordered, share / 100)
    below = sum(value <= found for value in ordered)
    assert below * 100 >= share * len(ordered)
    smaller = [value for value in ordered if value < found]
    assert not smaller or len(smaller) * 100 < share * len(ordered) + 1


@given(st.integers(0, 10**9), st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 1e3), st.integers(0, 10**6))
def test_result_line_has_the_observations(
    index: int, sent: float, arrived: float, called: float, tokens: int
) -> None:
    seen = Seen(index, sent, arrived, called, tokens)
    assert Seen.parse(seen.line()) == seen


def test_the_margins_are_not_counted() -> None:
    slow_ends = [at_rate(i, added_s=9.0 if i < 15 or i >= 85 else 0.001) for i in range(100)]
    assert figures(load(100, 10.0, margin=0.15), slow_ends).added_ms_p99 == pytest.approx(1.0, abs=1e-6)
    assert figures(load(100, 10.0), slow_ends).added_ms_p99 == pytest.approx(9000.0, abs=1e-6)


def test_too_few_events_give_no_figures() -> None:
    found = figures(load(100, 10.0), [at_rate(1)])
    assert (found.events_per_s, found.answered, found.added_ms) == (0.0, 1, ())


def test_schedule_starts_to_fit_the_earliest_event() -> None:
    seen = [at_rate(3, late_s=2.0), at_rate(4), at_rate(5, late_s=1.0)]
    due_s = schedule(load(6, 10.0), seen)
    assert due_s(seen[0]) == pytest.approx(100.3)
    assert due_s(seen[1]) == pytest.approx(seen[1].sent_s)
