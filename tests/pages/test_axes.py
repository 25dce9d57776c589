"""Axes: every value has a place, and labels are round and few."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.pages.axes import MAX_TICKS, Axis, TimeAxis, linear_ticks, range_over, value_axis

VALUES = st.lists(st.floats(0, 1e9), min_size=1, max_size=20)


def test_round_values_on_an_axis() -> None:
    assert linear_ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10]
    assert linear_ticks(59.5, 66.0) == [60, 62, 64, 66] or linear_ticks(59.5, 66.0)[0] == 60
    assert linear_ticks(3.0, 3.0) == [3.0]
    assert _labels(Axis(1.0, 1000.0, log=True)) == ["1", "10", "100", "1,000"]
    assert _labels(Axis(10.0, 300.0, log=True)) == ["10", "20", "50", "100", "200"]


def _labels(axis: Axis) -> list[str]:
    return [words for _, words in axis.ticks()]


@given(VALUES, st.booleans())
def test_every_value_has_a_place_on_its_axis(values: list[float], log: bool) -> None:
    axis = value_axis(values, 10.0, 110.0, log=log)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert 10.0 <= places[0] <= places[-1] <= 110.0
    ticks = axis.ticks()
    assert len(ticks) <= MAX_TICKS + 1
    assert all(10.0 - 1e-6 <= axis.at(tick) <= 110.0 + 1e-6 for tick, _ in ticks)


@given(st.integers(-(10**18), 10**18), st.integers(0, 10**15))
def test_a_time_axis_has_few_labels(low_ms: int, span_ms: int) -> None:
    axis = TimeAxis(low_ms, low_ms + span_ms)
    ticks = axis.ticks()
    assert len(ticks) <= MAX_TICKS + 1
    room_ms = 1000 + 1e-9 * (abs(low_ms) + span_ms)
    assert all(low_ms - room_ms <= time_ms <= low_ms + span_ms + room_ms for time_ms, _ in ticks)


def test_few_outlying_times_are_not_on_the_axis() -> None:
    assert range_over([*range(0, 100_000, 1000), 10**14]) == (0, 194_000)
    assert range_over([]) == (0.0, 0.0)
