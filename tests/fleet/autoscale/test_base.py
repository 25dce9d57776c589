from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import (
    MAX_REPLICAS,
    Decision,
    ReplicaSpeed,
    Scaler,
    ScalingLimits,
    ScalingPolicy,
    ServiceClass,
    Signals,
    Timings,
)

SPEED = ReplicaSpeed(1e-4, 1e-3, requests=10)


@dataclass
class Always:
    wanted: int

    def decide(self, signals: Signals) -> Decision:
        return Decision(self.wanted, "always")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"least": 3, "most": 2}, "least number, 3, is above the most, 2"),
        ({"least": -1}, "least number"),
        ({"most": 0}, "most"),
        ({"budget_per_hour": 10.0}, "give both"),
        ({"price_per_hour": 2.0}, "give both"),
        ({"budget_per_hour": 1.0, "price_per_hour": 2.0}, "raise the budget"),
        ({"least": 4, "budget_per_hour": 6.0, "price_per_hour": 2.0}, "pays for 3 replicas"),
        ({"budget_per_hour": math.nan, "price_per_hour": 2.0}, "above 0"),
        ({"stale_after_s": -1.0}, "stale_after_s"),
    ],
)
def test_contradicting_limits_are_rejected(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        ScalingLimits(**limits)


def test_values_out_of_range_are_rejected() -> None:
    for wrong in (
        lambda: ServiceClass(slo_s=0),
        lambda: ServiceClass(slo_s=math.inf),
        lambda: Timings(boot_s=-1),
        lambda: Timings(interval_s=0),
        lambda: ReplicaSpeed(0, 0),
        lambda: ReplicaSpeed(1e-4, math.nan),
    ):
        with pytest.raises(SettingError):
            wrong()


def test_budget_limits_replicas() -> None:
    limits = ScalingLimits(budget_per_hour=10.0, price_per_hour=2.5)
    found = Scaler(Always(9), SPEED, limits).decide(Signals(0.0, ready=1))
    assert found.wanted == 4
    assert "4 in place of 9" in found.reason
    assert ScalingLimits(budget_per_hour=1e300, price_per_hour=1e-300).ceiling == MAX_REPLICAS


def test_stale_signals_change_nothing() -> None:
    scaler = Scaler(Always(0), SPEED)
    found = scaler.decide(Signals(0.0, ready=3, starting=(1.0,), age_s=31.0))
    assert found.wanted == 4
    assert "31 s old" in found.reason
    assert scaler.decide(Signals(0.0, ready=3, starting=(1.0,), age_s=29.0)).wanted == 0


@pytest.mark.parametrize(
    "signals",
    [
        Signals(0.0, ready=5, age_s=31.0),
        Signals(0.0, ready=5, age_s=math.inf),
        Signals(0.0, ready=5, kv_usage=math.nan),
    ],
)
def test_limits_hold_without_signals_and_the_reason_names_them(signals: Signals) -> None:
    found = Scaler(Always(4), SPEED, ScalingLimits(most=3)).decide(signals)
    assert found.wanted == 3
    assert found.reason.endswith(": 3 in place of 5 only for the limits")


@given(
    wanted=st.integers(0, 60), ready=st.integers(0, 50), starting=st.integers(0, 5), most=st.integers(1, 60)
)
def test_silent_subtask_allows_scaling_up_but_not_down(
    wanted: int, ready: int, starting: int, most: int
) -> None:
    signals = Signals(0.0, ready=ready, starting=(1.0,) * starting, silent=1)
    found = Scaler(Always(wanted), SPEED, ScalingLimits(most=most)).decide(signals)
    assert found.wanted == min(max(wanted, ready + starting), most)
    assert ("silent subtasks" in found.reason) is (wanted < found.wanted)


@dataclass
class Fails:
    def decide(self, signals: Signals) -> Decision:
        raise ValueError("no forecast for this hour")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Fails(), "ValueError: no forecast for this hour"),
        (Always(math.nan), "TypeError: expected a whole number of replicas, found nan"),  # type: ignore[arg-type]
    ],
)
@given(ready=st.integers(0, 50), running=st.floats(0, 1e6), least=st.integers(0, 5))
def test_failing_policy_changes_nothing(
    policy: ScalingPolicy, words: str, ready: int, running: float, least: int
) -> None:
    found = Scaler(policy, SPEED, ScalingLimits(least=least)).decide(
        Signals(0.0, ready=ready, running=running)
    )
    assert found.wanted == max(ready, least)
    assert words in found.reason
    assert ("nothing changes" in found.reason) is (found.wanted == ready)


@given(
    wanted=st.integers(-5, 10**9),
    ready=st.integers(0, 50),
    starting=st.lists(st.floats(0, 1e4), max_size=5),
    running=st.floats(0, 1e12) | st.just(math.nan),
    age_s=st.floats(0, 1e6) | st.just(math.inf),
    least=st.integers(0, 5),
    more=st.integers(1, 20),
)
def test_never_fewer_replicas_than_work_in_flight_needs(
    *, wanted: int, ready: int, starting: list[float], running: float, age_s: float, least: int, more: int
) -> None:
    limits = ScalingLimits(least=least, most=least + more)
    signals = Signals(0.0, ready=ready, starting=tuple(starting), running=running, age_s=age_s)
    found = Scaler(Always(wanted), SPEED, limits).decide(signals)
    in_flight = min(math.ceil(min(running, 1e9) / 10), ready) if running > 0 else 0
    assert found.wanted >= max(in_flight, least)
    assert found.wanted <= max(limits.most, in_flight)
