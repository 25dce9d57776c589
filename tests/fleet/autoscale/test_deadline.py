from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.fleet.autoscale.base import Backlog, ReplicaSpeed, ServiceClass, Signals, Timings, Tokens
from forebay.fleet.autoscale.deadline import DeadlinePolicy
from forebay.fleet.autoscale.forecast import DAY_S, Forecast, Season

SPEED = ReplicaSpeed(1e-3, 0.0, requests=10)
"""A token is a millisecond of work."""
STEP_S = 5.0


def work(seconds: float) -> Tokens:
    return Tokens(seconds, seconds * 1000)


def arrived(seconds: float) -> tuple[tuple[str, Tokens], ...]:
    return (("default", work(seconds)),)


def settled(policy: DeadlinePolicy, rate: float, until_s: float, *, ready: int, since_s: float = 0.0) -> int:
    """The decision after arrivals at this rate, which the ready replicas serve at once."""
    now_s, wanted = since_s, 0
    while now_s <= until_s:
        wanted = policy.decide(Signals(now_s, ready=ready, arrived=arrived(rate * STEP_S))).wanted
        now_s += STEP_S
    return wanted


@pytest.mark.heavy
def test_no_backlog_and_no_arrivals_need_no_replicas() -> None:
    policy = DeadlinePolicy(SPEED)
    assert settled(policy, 3.0, 600, ready=4) >= 3
    assert settled(policy, 0.0, 600 + 3 * 7200, ready=4, since_s=605.0) == 0


def test_one_request_at_zero_replicas_starts_one_replica() -> None:
    policy = DeadlinePolicy(SPEED)
    assert settled(policy, 0.0, 600, ready=0) == 0
    one = Tokens(1, 10)
    found = policy.decide(Signals(605.0, backlog=(Backlog(9.0, one),), arrived=(("default", one),)))
    assert found.wanted == 1


def test_steady_load_gets_enough_replicas_without_flapping() -> None:
    policy, wanted = DeadlinePolicy(SPEED), []
    for at in range(0, 3600, 5):
        found = policy.decide(Signals(float(at), ready=5, arrived=arrived(4.2 * STEP_S))).wanted
        if at > 900:
            wanted.append(found)
    assert set(wanted) <= {4, 5}
    assert sum(one != other for one, other in pairwise(wanted)) <= 2


def test_patient_backlog_needs_fewer_replicas_than_an_urgent_one() -> None:
    def wanted(slo_s: float, due_s: float) -> int:
        policy = DeadlinePolicy(SPEED, (ServiceClass(slo_s=slo_s),), Timings(boot_s=60))
        settled(policy, 0.0, 300, ready=1)
        return policy.decide(Signals(305.0, ready=1, backlog=(Backlog(due_s, work(1000)),))).wanted

    assert wanted(600, 165) > wanted(600, 565) >= 2


@pytest.mark.heavy
def test_class_with_a_later_deadline_needs_fewer_replicas() -> None:
    def wanted(slo_s: float) -> int:
        classes = (ServiceClass("chat", slo_s), ServiceClass("batch", 3600))
        policy = DeadlinePolicy(SPEED, classes, Timings(boot_s=60))
        most = 0
        for at in range(0, 1800, 5):
            # A hundred seconds of work every five minutes, at once.
            both = (("chat", work(100.0 * (at % 300 == 0))), ("batch", work(5.0)))
            found = policy.decide(Signals(float(at), ready=4, arrived=both)).wanted
            most = max(most, found) if at > 900 else 0
        return most

    assert wanted(5) > wanted(600)


def test_boot_time_ten_times_as_long_is_learned() -> None:
    policy = DeadlinePolicy(SPEED, timings=Timings(boot_s=60))
    found = policy.decide(Signals(0.0, ready=1, starting=(600.0,)))
    assert "in 605 s" in found.reason
    # One that was never seen to end teaches nothing.
    assert "in 65 s" in policy.decide(Signals(1.0, ready=1)).reason
    assert "in 605 s" in policy.decide(Signals(2.0, ready=2, booted_s=(600.0,))).reason
    for at in range(5, 200, 5):
        found = policy.decide(Signals(float(at), ready=2, booted_s=(30.0,)))
    assert "in 35 s" in found.reason


def test_load_jump_is_met_at_once_without_overshoot() -> None:
    policy = DeadlinePolicy(SPEED, (ServiceClass(slo_s=60),), Timings(boot_s=60))
    settled(policy, 2.0, 1800, ready=3)
    found = 0
    for step in range(1, 5):
        backlog = (Backlog(60.0 - 2.5 * step, work(17.0 * 5 * step)),)
        now_s = 1800 + STEP_S * step
        found = policy.decide(Signals(now_s, ready=3, arrived=arrived(100.0), backlog=backlog)).wanted
    assert 12 <= found <= 40


@pytest.mark.parametrize("first", [0, -3], ids=["then", "before the clock's zero"])
def test_daily_pattern_is_learned_from_history(first: int) -> None:
    season = Season()
    for day in range(3):
        for minute in range(1440):
            begin_s = (first + day) * DAY_S + 60.0 * minute
            season.add(begin_s, begin_s + 60, 60.0 * (8 if 540 <= minute < 600 else 1))
    assert season.rate(3 * DAY_S + 8.5 * 3600) == pytest.approx(1, abs=0.1)
    assert season.rate(3 * DAY_S + 9.5 * 3600) == pytest.approx(8, abs=0.1)
    assert Season().rate(0.0) is None


@pytest.mark.heavy
def test_forecast_ten_times_off_is_replaced_by_actual_arrivals() -> None:
    """For two days the load jumps to ten times the rate each second hour; then the jumps come no more."""
    step_s = 120.0
    policy = DeadlinePolicy(SPEED, timings=Timings(boot_s=600, interval_s=step_s))
    expected: dict[float, float] = {}
    wanted = 0
    for step in range(round(4 * DAY_S / step_s)):
        at_s = step * step_s
        rate = 20.0 if at_s // 3600 % 2 and at_s < 2 * DAY_S else 2.0
        found = policy.decide(Signals(at_s + step_s, ready=25, arrived=arrived(rate * step_s)))
        wanted = found.wanted
        if at_s % 7200 == 3600 - 2 * step_s:
            # Right before the load jumps, or would have jumped.
            expected[at_s / DAY_S] = float(found.reason.split("/s come")[0].rpartition(" ")[2])
    believed = [rate for day, rate in expected.items() if 1.5 <= day < 2]
    assert min(believed) > 15, "what came yesterday at this time is expected"
    assert next(iter(rate for day, rate in expected.items() if day >= 2)) > 15
    assert {rate for day, rate in expected.items() if day >= 2.15} == {2.0}
    assert wanted <= 4, "nor does the margin fear the jumps any more"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.lists(st.floats(0, 1e4), max_size=3),
            st.floats(0, 1e6),
            st.floats(-1e3, 1e3),
            st.floats(0, 1e6),
            st.lists(st.floats(0, 1e6) | st.just(math.nan), max_size=2),
        ),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([(0.0, 10.0), (60.0, 10.0), (60.0, 60.0), (180.0, 60.0), (600.0, 5.0)]),
)
def test_any_signals_give_a_replica_count_in_range(
    steps: list[tuple[int, list[float], float, float, float, list[float]]], times: tuple[float, float]
) -> None:
    policy = DeadlinePolicy(SPEED, (ServiceClass(slo_s=times[1]),), Timings(boot_s=times[0]))
    for number, (ready, starting, waits, due_s, came, booted) in enumerate(steps):
        found = policy.decide(
            Signals(
                number * STEP_S,
                ready=ready,
                starting=tuple(starting),
                booted_s=tuple(booted),
                backlog=(Backlog(due_s, work(waits)),) if waits else (),
                arrived=arrived(came),
            )
        )
        assert 0 <= found.wanted <= 10_000
        assert found.wanted >= (1 if waits else 0)
        assert found.reason


@given(st.lists(st.floats(0, 100), min_size=5, max_size=100), st.floats(10, 200))
def test_forecasts_are_never_negative(rates: list[float], window_s: float) -> None:
    forecast = Forecast(window_s)
    for number, rate in enumerate(rates):
        forecast.add(number * STEP_S, (number + 1) * STEP_S, rate * STEP_S)
        expected = forecast.expect((number + 1) * STEP_S)
        assert 0 <= expected < math.inf
        assert 0 <= forecast.above(expected, 0.01) < math.inf


@pytest.mark.parametrize(("slo_s", "zero"), [(90.0, True), (30.0, False)])
def test_no_replica_is_kept_after_a_burst_if_arrivals_can_wait_for_a_boot(slo_s: float, zero: bool) -> None:
    policy = DeadlinePolicy(SPEED, (ServiceClass(slo_s=slo_s),), Timings(boot_s=60))
    settled(policy, 0.0, 600, ready=4)
    assert settled(policy, 8.0, 660, ready=4, since_s=605.0) >= 1
    # For as long as a start takes, and then as one would cost.
    assert settled(policy, 0.0, 720, ready=4, since_s=665.0) >= 1
    assert (settled(policy, 0.0, 900, ready=4, since_s=725.0) == 0) is zero


@pytest.mark.heavy
def test_margin_and_hold_follow_the_learned_boot_time() -> None:
    """A policy set to 60 s that saw boots of 600 s decides like one set to 600 s."""
    told, learned = (DeadlinePolicy(SPEED, timings=Timings(boot_s=boot_s)) for boot_s in (600.0, 60.0))
    random = Random(0)
    differ = 0
    for at in range(0, 13_000, 5):
        # A burst of five minutes now and then, and nothing at the end.
        rate = 8.0 if at // 300 % 5 == 3 else 1.0
        came = arrived(rate * STEP_S * random.uniform(0.5, 1.5) if at < 12_000 else 0.0)
        booted = (600.0,) if at == 900 else ()
        one, other = (
            policy.decide(Signals(float(at), ready=9, booted_s=booted, arrived=came)).wanted
            for policy in (told, learned)
        )
        # Errors of the short window count for two hours, from the end of the first long one on, then holds.
        differ += one != other and at > 900 + 610 + 7200 + 610
    assert differ == 0


@given(
    rates=st.lists(st.floats(0, 100), min_size=60, max_size=60),
    window_s=st.sampled_from([10.0, 300.0, 7200.0]),
)
def test_forecasts_are_judged_over_their_own_window(rates: list[float], window_s: float) -> None:
    same, resized = Forecast(60.0), Forecast(60.0)
    for number, rate in enumerate(rates):
        now_s = (number + 1) * STEP_S
        for forecast in (same, resized):
            forecast.add(now_s - STEP_S, now_s, rate * STEP_S)
        if number < 40:
            assert same.expect(now_s) == resized.expect(now_s)
        elif number == 40:
            resized.resize(window_s)
    assert same.best == resized.best
    assert [same.above(10.0, share) for share in (0.01, 0.5)] == [
        resized.above(10.0, share) for share in (0.01, 0.5)
    ]


def test_forecasts_for_shorter_windows_are_judged_first() -> None:
    forecast = Forecast(3600.0)
    for number in range(60):
        now_s = (number + 1) * STEP_S
        forecast.add(now_s - STEP_S, now_s, 5.0)
        if number == 20:
            forecast.resize(10.0)
        expected = forecast.expect(now_s)
    # Steady arrivals were never above what was expected; before enough is known, chance is assumed.
    assert forecast.above(expected, 0.01) == 0.0
