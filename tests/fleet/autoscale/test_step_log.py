"""A scaling loop's log: each change with its reason, failures, and never a flood."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.fleet.autoscale.base import Decision, Signals
from forebay.fleet.autoscale.loop import ScalingStep
from forebay.fleet.autoscale.step_log import CHANGES_S, FAILURES_S, StepLog

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


def test_what_goes_up_and_down_is_reported_as_it_is_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    steps = [step(second, 1 + second % 2) for second in range(8)] + [step(10, 4), step(11, 4)]
    assert [words.split(" replicas")[0] for _, words in told(caplog, steps)] == ["1", "4"]
    # A number that is the same again after that time is not a change.
    assert len(told(caplog, [step(0, 1), step(5, 2), step(9, 1), step(60, 1)])) == 1


def test_a_policy_that_fails_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    steps = [step(0, 2), step(5, 2, failed=True), step(10, 2, failed=True), step(70, 2, failure="no quota")]
    assert told(caplog, steps) == [
        ("INFO", "2 replicas are wanted, 1 are ready, 1 start: reason 0"),
        ("WARNING", "replicas could not be scaled as decided: reason 5"),
        ("WARNING", "replicas could not be scaled as decided: no quota"),
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=300))
def test_there_is_never_a_flood(caplog: pytest.LogCaptureFixture, steps: list[tuple[int, bool]]) -> None:
    found = told(
        caplog, [step(float(at), wanted, failed=failed) for at, (wanted, failed) in enumerate(steps)]
    )
    levels = [level for level, _ in found]
    assert levels.count("INFO") <= 1 + len(steps) / CHANGES_S
    assert levels.count("WARNING") <= 1 + len(steps) / FAILURES_S
