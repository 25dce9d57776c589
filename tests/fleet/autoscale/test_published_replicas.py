from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import (
    Backlog,
    Decision,
    ReplicaSpeed,
    Scaler,
    ScalingLimits,
    ScalingPolicy,
    Signals,
    Timings,
    Tokens,
)
from forebay.fleet.autoscale.learned import ScalingMemory
from forebay.fleet.autoscale.loop import (
    PATIENCE,
    Demand,
    PublishedReplicas,
    ReplicaCounts,
    ScalingLoop,
    ScalingStep,
)
from forebay.fleet.autoscale.proportional import BatchedTokens, KvCacheUse, PlannedCapacity, QueueLength
from forebay.fleet.autoscale.settings import ScalingSettings, memory_of

BOOT_S = 100.0
STEP_S = 5.0


class Platform:
    """Starts what is published, at most `room`, each in `boot_s`."""

    def __init__(self, room: int, boot_s: float = BOOT_S) -> None:
        self.room = room
        self.boot_s = boot_s
        self.now_s = 0.0
        self._began_s: list[float] = []

    def ready(self) -> int:
        return sum(self.now_s - began_s >= self.boot_s for began_s in self._began_s)

    def publish(self, wanted: int) -> None:
        wanted = min(wanted, self.room)
        self._began_s += [self.now_s] * (wanted - len(self._began_s))
        del self._began_s[wanted:]

    def die(self) -> None:
        self._began_s = self._began_s[1:]


class Work:
    def take(self, now_s: float) -> Demand:
        waits = Tokens(1000, 800 * BOOT_S, 0)
        return Demand((Backlog(BOOT_S, waits),), (("default", Tokens(40, 4000, 0)),))


def course(
    platform: Platform, span_s: float, then: Callable[[float], None] = lambda now_s: None
) -> list[ScalingStep]:
    settings = ScalingSettings(
        ScalingLimits(0, 8),
        slo_s=BOOT_S,
        timings=Timings(boot_s=BOOT_S, interval_s=STEP_S),
        speed=ReplicaSpeed(0.01, 0.01),
    )
    owner = PublishedReplicas(platform.ready, platform.publish, BOOT_S)
    loop = ScalingLoop(settings.scaler()[0], owner, Work(), STEP_S)
    steps = []
    while platform.now_s < span_s:
        then(platform.now_s)
        step = loop.tick(platform.now_s)
        assert step is not None
        assert not step.decision.failed
        steps.append(step)
        platform.now_s += STEP_S
    return steps


def lead_s(step: ScalingStep) -> float:
    return float(step.decision.reason.split(" s of work wait in ")[1].split(" s,")[0])


def test_replicas_rejected_by_a_quota_are_awaited_but_teach_no_boot_time() -> None:
    steps = course(Platform(room=4), 3600.0)
    assert max(len(step.signals.starting) for step in steps) == 8
    assert {step.decision.wanted for step in steps[1:]} == {8}
    awaited = [step for step in steps if step.signals.now_s <= PATIENCE * BOOT_S]
    given_up = steps[len(awaited) :]
    assert all(step.signals.replicas == 8 for step in awaited[1:])
    assert {(step.signals.ready, step.signals.starting) for step in given_up} == {(4, ())}
    assert {lead_s(step) for step in given_up} == {BOOT_S + STEP_S}


def test_restarts_under_a_quota_teach_the_restart_time() -> None:
    platform = Platform(room=4)

    def die(now_s: float) -> None:
        if now_s > 1000 and now_s % 400 == 0:
            platform.die()

    steps = course(platform, 5000.0, die)
    assert {round(took_s) for step in steps for took_s in step.signals.booted_s} == {round(BOOT_S)}
    assert lead_s(steps[-1]) == BOOT_S + STEP_S


def test_raised_quota_within_the_wait_teaches_a_boot_time() -> None:
    platform = Platform(room=4)

    def raised(now_s: float) -> None:
        platform.room = 8 if now_s >= 3600 else 4

    steps = course(platform, 4000.0, raised)
    assert steps[-1].signals.ready == 8
    assert max(took_s for step in steps for took_s in step.signals.booted_s) == PATIENCE * BOOT_S


@pytest.mark.heavy
def test_ten_times_longer_boots_are_learned_step_by_step() -> None:
    platform = Platform(room=8, boot_s=10 * BOOT_S)
    steps = course(platform, 10_000.0, lambda now_s: platform.die() if now_s % 1500 == 0 else None)
    learned = [took_s for step in steps for took_s in step.signals.booted_s]
    assert learned == sorted(learned)
    assert (learned[0], learned[-1]) == (PATIENCE * BOOT_S, 10 * BOOT_S)


def test_remembered_boot_times_are_awaited_and_kept() -> None:
    """A restart begins with the assumed boot, which is a sixth of what boots have taken."""
    settings = ScalingSettings(ScalingLimits(0, 8), timings=Timings(boot_s=BOOT_S, interval_s=STEP_S))

    def made(platform: Platform) -> tuple[ScalingMemory, ScalingLoop]:
        owner = PublishedReplicas(platform.ready, platform.publish, BOOT_S)
        scaler, speed = settings.scaler()
        memory = memory_of(settings, "m", {"replicas": owner}, scaler.policy, speed)
        return memory, ScalingLoop(scaler, owner, Work(), STEP_S)

    def booted_s(platform: Platform, loop: ScalingLoop, until_s: float) -> list[float]:
        found: list[float] = []
        while platform.now_s < until_s:
            step = loop.tick(platform.now_s)
            assert step is not None
            found += step.signals.booted_s
            platform.now_s += STEP_S
        return found

    platform = Platform(room=8, boot_s=6 * BOOT_S)
    before, loop = made(platform)
    booted_s(platform, loop, 3000.0)
    data = before.save(1)
    assert data is not None
    again = Platform(room=8, boot_s=6 * BOOT_S)
    after, loop = made(again)
    assert after.recall(data) == []
    assert set(booted_s(again, loop, 3000.0)) == {6 * BOOT_S}


@given(
    rounds=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.floats(0, 500)), max_size=60),
    boot_s=st.floats(0, 600),
)
def test_only_missing_replicas_are_awaited_and_not_for_long(
    rounds: list[tuple[int, int, float]], boot_s: float
) -> None:
    ready = [0]
    owner = PublishedReplicas(lambda: ready[0], lambda wanted: None, boot_s)
    now_s, missing, longest_s = 0.0, 0, max(boot_s, 60.0)
    for there, wanted, gap_s in rounds:
        ready[0] = there
        found = owner.counts(now_s)
        longest_s = max(longest_s, *found.booted_s, 0.0)
        assert found.ready == there
        assert len(found.starting) + len(found.booted_s) <= missing
        assert all(0 <= age_s <= PATIENCE * longest_s for age_s in found.starting)
        owner.scale(wanted, now_s)
        missing = max(wanted - there, 0)
        now_s += gap_s
    assert isinstance(owner.counts(now_s), ReplicaCounts)


class Failing:
    def __init__(self) -> None:
        self.asked = False

    def decide(self, signals: Signals) -> Decision:
        if self.asked:
            raise ValueError("no")
        self.asked = True
        return Decision(3, "three")


class Silent:
    def take(self, now_s: float) -> Demand:
        return Demand(silent=1)


class Three:
    def decide(self, signals: Signals) -> Decision:
        return Decision(3, "three")


@pytest.mark.parametrize("policy", [Failing(), Three()], ids=["the policy fails", "subtasks are silent"])
def test_replicas_requested_by_others_are_not_requested_again(policy: ScalingPolicy) -> None:
    published: list[int] = []
    # The scaler adds two for a gateway, at once.
    owner = PublishedReplicas(lambda: published[-1] + 2 if published else 0, published.append, BOOT_S)
    loop = ScalingLoop(
        Scaler(policy, ReplicaSpeed(0.01, 0.01), ScalingLimits(0, 20)), owner, Silent(), STEP_S
    )
    for number in range(6):
        loop.tick(number * STEP_S)
    assert published == [3] * 6


@pytest.mark.parametrize("wrong", [{}, {"boot_s": -1.0}, {"boot_s": math.inf}, {"boot_s": "x"}])
def test_invalid_boot_time_is_not_remembered(wrong: dict[str, object]) -> None:
    owner = PublishedReplicas(lambda: 0, lambda wanted: None, BOOT_S)
    with pytest.raises(ValueError, match="boot_s"):
        owner.recall(wrong)
    assert owner.remembers() == {"boot_s": BOOT_S}


def waiting(number: float, now_s: float = 0.0, ready: int = 2) -> Signals:
    return Signals(now_s, ready=ready, backlog=(Backlog(5.0, Tokens(number, 100 * number, 10 * number)),))


def test_queue_policy_brings_the_mean_queue_to_its_target() -> None:
    assert QueueLength(10, hold_s=0).decide(waiting(60)).wanted == 6
    assert QueueLength(10, hold_s=0).decide(waiting(21)).wanted == 2  # within a tenth
    assert QueueLength(10, hold_s=0).decide(waiting(25, ready=0)).wanted == 3


def test_queue_policy_has_no_signal_if_the_queue_is_empty() -> None:
    """Its fault: ten busy replicas that keep up look like none that are needed."""
    busy = Signals(0.0, ready=10, running=1000.0, running_tokens=1e6, kv_usage=0.9)
    assert QueueLength(10, hold_s=0).decide(busy).wanted == 1


def test_batch_signal_does_not_depend_on_the_backlog() -> None:
    few, many = (Signals(0.0, ready=2, running_tokens=2e5, backlog=waiting(n).backlog) for n in (1, 10**6))
    assert BatchedTokens(50_000, hold_s=0).decide(few).wanted == 4
    assert BatchedTokens(50_000, hold_s=0).decide(many).wanted == 4


def test_kv_cache_policy_follows_the_cache_usage() -> None:
    assert KvCacheUse(0.5, hold_s=0).decide(Signals(0.0, ready=4, kv_usage=0.9)).wanted == 8
    assert KvCacheUse(0.5, hold_s=0).decide(Signals(0.0, ready=4, kv_usage=0.1)).wanted == 1


def test_capacity_policy_follows_the_arrivals() -> None:
    policy = PlannedCapacity(ReplicaSpeed(1e-3, 1e-2), use=0.5, window_s=60, hold_s=0)
    found = 0
    for at in range(0, 120, 5):
        arrived = (("default", Tokens(5, 5000, 500)),)  # ten seconds of work in five
        found = policy.decide(Signals(float(at), ready=1, arrived=arrived)).wanted
    assert found == 4


@pytest.mark.parametrize("policy", [QueueLength(10, 60.0), KvCacheUse(0.5, 60.0)])
def test_replicas_are_removed_only_after_the_hold(policy: QueueLength | KvCacheUse) -> None:
    high = Signals(0.0, ready=4, kv_usage=1.0, backlog=waiting(80).backlog)
    assert policy.decide(high).wanted == 8
    assert policy.decide(Signals(60.0, ready=4)).wanted == 8
    assert policy.decide(Signals(61.0, ready=4)).wanted == 1


def test_targets_out_of_range_are_rejected() -> None:
    for wrong in (
        lambda: QueueLength(0),
        lambda: BatchedTokens(-1),
        lambda: KvCacheUse(float("nan")),
        lambda: QueueLength(1, hold_s=-1),
        lambda: PlannedCapacity(ReplicaSpeed(1, 1), window_s=0),
    ):
        with pytest.raises(SettingError):
            wrong()
