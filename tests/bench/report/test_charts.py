"""Axes and numbers of charts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.report.charts import (
    LOG_FROM,
    MOST_TICKS,
    Axis,
    Unit,
    linear_ticks,
    shown,
    time_unit,
    value_axis,
)

MS = Unit("ms", 1000.0)
VALUES = st.lists(st.floats(0, 1e9), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0, None, "0"),
        (1234.5, None, "1,234"),
        (12.345, None, "12.3"),
        (0.4167, Unit("s"), "0.417 s"),
        (0.2, MS, "200 ms"),
        (0.00002, MS, "0.02 ms"),
        (0.0000002, MS, "0"),
        (0.5, Unit("%", 100.0), "50 %"),
        (float("inf"), None, "–"),
        (float("nan"), None, "–"),
        (-0.25, None, "-0.25"),
        (99.99, None, "100"),
    ],
)
def test_numbers_have_three_digits_and_their_unit(value: float, unit: Unit | None, words: str) -> None:
    assert shown(value, unit).removesuffix(" ms") == words.removesuffix(" ms")


def test_the_unit_follows_the_times() -> None:
    assert [time_unit(most_s).name for most_s in (60.0, 2.0, 1.9, 0.002, 0.0001)] == [
        "s",
        "s",
        "ms",
        "ms",
        "µs",
    ]


def test_round_values_on_an_axis() -> None:
    assert linear_ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10]
    assert linear_ticks(59.5, 66.0) == [60, 62, 64, 66] or linear_ticks(59.5, 66.0)[0] == 60
    assert linear_ticks(3.0, 3.0) == [3.0]
    assert Axis(1.0, 1000.0, 0, 1, log=True).ticks() == [1, 10, 100, 1000]
    assert Axis(10.0, 300.0, 0, 1, log=True).ticks() == [10, 20, 50, 100, 200]


@given(VALUES, st.booleans())
def test_every_value_has_a_place_on_its_axis(values: list[float], log: bool) -> None:
    axis = value_axis(values, 10.0, 110.0, log=log)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert 10.0 <= places[0] <= places[-1] <= 110.0
    ticks = axis.ticks()
    assert len(ticks) <= MOST_TICKS + 1
    assert all(10.0 - 1e-6 <= axis.at(tick) <= 110.0 + 1e-6 for tick in ticks)


def test_an_axis_is_logarithmic_where_values_differ_much() -> None:
    assert value_axis([1.0, LOG_FROM], 0, 1, log=True).log
    assert not value_axis([1.0, LOG_FROM - 1], 0, 1, log=True).log
    assert not value_axis([1.0, 1e6], 0, 1).log
