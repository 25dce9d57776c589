"""When requests are due."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.load.schedules import (
    Bursts,
    ClosedLoop,
    Constant,
    Gamma,
    Poisson,
    Ramp,
    Schedule,
    TraceReplay,
)
from forebay.errors import SettingError

rates = st.floats(0.001, 10_000)
schedules: st.SearchStrategy[Schedule] = st.one_of(
    rates.map(Constant),
    rates.map(Poisson),
    st.builds(Gamma, rates, st.floats(0.05, 100)),
    st.builds(Bursts, st.integers(1, 50) | st.none(), st.floats(0.01, 60)),
    st.builds(Ramp, rates, rates, st.floats(0.01, 1000), st.booleans()),
)


@given(schedules, st.integers(1, 200), st.integers())
def test_send_times_are_ordered_and_determined_by_the_seed(
    schedule: Schedule, requests: int, seed: int
) -> None:
    due_s = schedule.due_s(requests, Random(seed))
    assert len(due_s) == requests
    assert due_s[0] >= 0
    assert all(math.isfinite(at_s) for at_s in due_s)
    assert all(before_s <= at_s for before_s, at_s in pairwise(due_s))
    assert due_s == schedule.due_s(requests, Random(seed))
    assert schedule.asked()["kind"]


@given(rates, st.integers(2, 200), st.floats(0.05, 100))
def test_random_schedules_meet_their_rate_exactly(rate: float, requests: int, burstiness: float) -> None:
    for schedule in (Poisson(rate), Gamma(rate, burstiness)):
        assert schedule.due_s(requests, Random(1))[-1] == pytest.approx(requests / rate)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Poisson(50), 1.0),
        (Gamma(50), 1.0),
        (Gamma(50, 4), 0.5),
        (Gamma(50, 0.25), 2.0),
        (Gamma(50, 1 / 9), 3.0),
    ],
)
def test_gaps_have_the_requested_variation(schedule: Schedule, expected: float) -> None:
    gaps_s = [b - a for a, b in pairwise(schedule.due_s(40_000, Random(7)))]
    assert mean(gaps_s) == pytest.approx(0.02, rel=0.01)
    assert pstdev(gaps_s) / mean(gaps_s) == pytest.approx(expected, rel=0.05)


def test_a_ramp_reaches_its_last_rate_and_stays_there() -> None:
    due_s = Ramp(10, 30, 10, even=True).due_s(400, Random())
    # 20 per second on average: 200 within the ramp, then 30 per second.
    assert due_s[200] == pytest.approx(10)
    assert due_s[1] - due_s[0] == pytest.approx(1 / 10, rel=0.05)
    assert due_s[199] - due_s[198] == pytest.approx(1 / 30, rel=0.05)
    assert due_s[399] - due_s[200] == pytest.approx(199 / 30)
    falling_s = Ramp(30, 10, 10, even=True).due_s(201, Random())
    assert falling_s[200] == pytest.approx(10)
    drawn_s = Ramp(10, 30, 10).due_s(20_000, Random(3))
    assert sum(at_s < 5 for at_s in drawn_s) == pytest.approx(75, abs=30)


def test_deterministic_send_times() -> None:
    assert Constant(4).due_s(4, Random()) == [0.0, 0.25, 0.5, 0.75]
    assert Bursts().due_s(3, Random()) == [0, 0, 0]
    assert Bursts(2, 5).due_s(5, Random()) == [0, 0, 5, 5, 10]


def test_a_replay_keeps_the_gaps_at_its_speed() -> None:
    assert TraceReplay([0.0, 1.0, 4.0], speed=2).due_s(3, Random()) == [0.0, 0.5, 2.0]
    with pytest.raises(SettingError, match="mine holds 3 requests, and 4 were asked for"):
        TraceReplay([0.0, 1.0, 4.0], source="mine").due_s(4, Random())


@pytest.mark.parametrize(
    "build",
    [
        lambda: Gamma(1, 0),
        lambda: Gamma(1, math.nan),
        lambda: Bursts(0),
        lambda: Bursts(1, 0),
        lambda: Bursts(1, math.nan),
        lambda: Ramp(1, 1, 0),
        lambda: TraceReplay([0.0], speed=0),
        lambda: ClosedLoop(0),
        lambda: ClosedLoop(10**9),
        lambda: Constant(1).due_s(0, Random()),
        lambda: Bursts().due_s(0, Random()),
        lambda: Constant(1).due_s(10**9, Random()),
    ],
)
def test_invalid_values_are_rejected(build: object) -> None:
    with pytest.raises(SettingError):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, 1e9])
def test_invalid_rate_is_rejected(rate: float) -> None:
    for build in (Constant, Poisson, Gamma, lambda r: Ramp(r, 1, 1), lambda r: Ramp(1, r, 1)):
        with pytest.raises(SettingError, match="expected requests per second"):
            build(rate)
