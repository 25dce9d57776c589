from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.errors import ForebayError, SettingError
from forebay.fleet.autoscale.base import (
    Backlog,
    Decision,
    ReplicaSpeed,
    Scaler,
    ScalingLimits,
    Signals,
    Tokens,
)
from forebay.fleet.autoscale.loop import (
    CHANGES_S,
    FAILURES_S,
    Demand,
    ReplicaCounts,
    ScalingLoop,
    ScalingStep,
    StepLog,
)
from forebay.fleet.autoscale.settings import SCALING_POLICIES, ScalingSetup, make_scaling

SPEED = ReplicaSpeed(1e-4, 1e-2, requests=10)
WAITS = Demand((Backlog(5.0, Tokens(3, 30, 60)),), (("default", Tokens(3, 30, 60)),), running=2.0)


@dataclass
class Replicas:
    """Replicas that boot in `boot_s` and drain at once; what was asked for."""

    boot_s: float = 10.0
    started_s: list[float] = field(default_factory=list)
    told: int = 0
    refuses: str = ""
    hidden: str = ""
    asked: list[int] = field(default_factory=list)

    def counts(self, now_s: float) -> ReplicaCounts:
        if self.hidden:
            raise ForebayError(self.hidden)
        ages = [now_s - at_s for at_s in self.started_s]
        booting = tuple(age_s for age_s in ages if age_s < self.boot_s)
        ready = len(ages) - len(booting)
        booted = (self.boot_s,) * max(ready - self.told, 0)
        self.told = ready
        return ReplicaCounts(ready, booting, booted_s=booted)

    def scale(self, wanted: int, now_s: float) -> None:
        if self.refuses:
            raise ForebayError(self.refuses)
        self.asked.append(wanted)
        self.started_s += [now_s] * (wanted - len(self.started_s))
        del self.started_s[wanted:]


@dataclass
class Stream:
    demand: Demand = WAITS
    taken: int = 0

    def take(self, now_s: float) -> Demand:
        self.taken += 1
        return self.demand


@dataclass
class ByWaiting:
    seen: list[Signals] = field(default_factory=list)

    def decide(self, signals: Signals) -> Decision:
        self.seen.append(signals)
        return Decision(round(signals.waiting), f"{signals.waiting:.0f} wait")


def loop_of(
    replicas: Replicas, stream: Stream, *, on_step: Callable[[ScalingStep], None] = lambda step: None
) -> tuple[ScalingLoop, ByWaiting]:
    policy = ByWaiting()
    scaler = Scaler(policy, SPEED, ScalingLimits(most=8))
    return ScalingLoop(scaler, replicas, stream, interval_s=5.0, on_step=on_step), policy


def test_policy_sees_stream_and_replicas_each_interval_and_is_applied() -> None:
    replicas, steps = Replicas(), list[ScalingStep]()
    loop, policy = loop_of(replicas, Stream(), on_step=steps.append)
    for now_s in (0.0, 4.9, 5.0, 9.0, 10.0, 30.0, 34.0, 35.0):
        loop.tick(now_s)
    assert [signals.now_s for signals in policy.seen] == [0.0, 5.0, 10.0, 30.0, 35.0]
    assert replicas.asked == [3] * 5
    first, second, third = policy.seen[:3]
    assert (first.backlog, first.arrived, first.running) == (WAITS.backlog, WAITS.arrived, 2.0)
    assert (second.ready, second.starting) == (0, (5.0,) * 3)
    assert (third.ready, third.booted_s) == (3, (10.0,) * 3)
    assert [step.decision.wanted != step.signals.kept for step in steps] == [True, False, False, False, False]
    assert loop.last is steps[-1]


def test_unreadable_replica_count_changes_nothing_and_keeps_arrivals() -> None:
    replicas, stream = Replicas(), Stream()
    loop, policy = loop_of(replicas, stream)
    loop.tick(0.0)
    replicas.hidden = "the API server does not answer"
    step = loop.tick(5.0)
    assert step is not None
    assert step.failure == "the API server does not answer"
    assert step.decision.wanted == step.signals.kept
    assert (stream.taken, len(policy.seen), replicas.asked) == (1, 1, [3])
    replicas.hidden = ""
    assert loop.tick(10.0) is not None
    assert stream.taken == 2


def test_platform_refusal_is_reported_and_retried() -> None:
    replicas = Replicas(refuses="quota: 0 of 2 GPUs left")
    loop, _ = loop_of(replicas, Stream())
    step = loop.tick(0.0)
    assert step is not None
    assert (step.failure, step.decision.wanted) == ("quota: 0 of 2 GPUs left", 3)
    replicas.refuses = ""
    loop.tick(5.0)
    assert replicas.asked == [3]


def test_minimum_is_kept_until_the_stream_is_known() -> None:
    replicas = Replicas()
    scaler = Scaler(ByWaiting(), SPEED, ScalingLimits(least=1, most=2))
    step = ScalingLoop(scaler, replicas, Stream(Demand(age_s=math.inf))).tick(0.0)
    assert step is not None
    assert step.decision == Decision(
        1, "there are no signals of the stream yet: 1 in place of 0 only for the limits"
    )
    assert replicas.asked == [1]


@given(
    gaps=st.lists(st.floats(0, 60), max_size=40),
    name=st.sampled_from(list(SCALING_POLICIES.own)),
    boot_s=st.floats(0, 600),
)
def test_every_policy_by_name_keeps_its_limits_in_the_loop(
    gaps: list[float], name: str, boot_s: float
) -> None:
    replicas, stream = Replicas(boot_s=boot_s), Stream()
    scaler = Scaler(make_scaling(name, ScalingSetup(SPEED)), SPEED, ScalingLimits(1, 3))
    loop = ScalingLoop(scaler, replicas, stream)
    now_s = 0.0
    for gap_s in gaps:
        now_s += gap_s
        step = loop.tick(now_s)
        assert step is None or not step.decision.failed
    assert set(replicas.asked) <= {1, 2, 3}


def test_unknown_name_is_rejected_with_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"expected one of queue, batch.*found 'dedline'.*deadline"):
        make_scaling("dedline", ScalingSetup(SPEED))


LOG = logging.getLogger("tests.step_log")


def step(now_s: float, wanted: int, *, failed: bool = False, failure: str = "") -> ScalingStep:
    reason = f"reason {now_s:g}"
    return ScalingStep(Signals(now_s, ready=1, starting=(2.0,)), Decision(wanted, reason, failed), failure)


def told(caplog: pytest.LogCaptureFixture, steps: Sequence[ScalingStep]) -> list[tuple[str, str]]:
    caplog.set_level(logging.INFO, LOG.name)
    caplog.clear()
    log = StepLog(LOG)
    for each in steps:
        log(each)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_each_change_is_reported_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, [step(0, 1), step(5, 1), step(100, 1), step(105, 3), step(200, 3)]) == [
        ("INFO", "1 replicas are wanted, 1 are ready, 1 start: reason 0"),
        ("INFO", "3 replicas are wanted in place of 1, 1 are ready, 1 start: reason 105"),
    ]


def test_oscillation_is_reported_once_it_settles(caplog: pytest.LogCaptureFixture) -> None:
    steps = [step(second, 1 + second % 2) for second in range(8)] + [step(10, 4), step(11, 4)]
    assert [words.split(" replicas")[0] for _, words in told(caplog, steps)] == ["1", "4"]
    # A number that is the same again after that time is not a change.
    assert len(told(caplog, [step(0, 1), step(5, 2), step(9, 1), step(60, 1)])) == 1


def test_failing_policy_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    steps = [step(0, 2), step(5, 2, failed=True), step(10, 2, failed=True), step(70, 2, failure="no quota")]
    assert told(caplog, steps) == [
        ("INFO", "2 replicas are wanted, 1 are ready, 1 start: reason 0"),
        ("WARNING", "replicas could not be scaled as decided: reason 5"),
        ("WARNING", "replicas could not be scaled as decided: no quota"),
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=300))
def test_reports_are_rate_limited(caplog: pytest.LogCaptureFixture, steps: list[tuple[int, bool]]) -> None:
    found = told(
        caplog, [step(float(at), wanted, failed=failed) for at, (wanted, failed) in enumerate(steps)]
    )
    levels = [level for level, _ in found]
    assert levels.count("INFO") <= 1 + len(steps) / CHANGES_S
    assert levels.count("WARNING") <= 1 + len(steps) / FAILURES_S
