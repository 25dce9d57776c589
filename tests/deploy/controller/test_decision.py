"""What the controller reads from metrics, and the resulting number of replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.deploy.controller.decision import Decider, DeploymentState
from forebay.deploy.controller.scrape import ObservedLoad, observed_load, shown, values
from forebay.deploy.kubernetes.deployment import IN_FLIGHT, WANTED
from forebay.errors import DeployError
from forebay.fleet.autoscale.base import ScalingLimits
from forebay.fleet.autoscale.settings import shares
from forebay.gateway.peak_load import PEAK_LOAD

STATE = DeploymentState("engine", "u", "7", replicas=2, ready=2)


def exposition(wanted: float, in_flight: float = 0.0) -> str:
    labels = '{operator_name="a b",host="x{\\"y\\"}",subtask_index="0",}'
    return (
        f"# HELP {WANTED} x\n# TYPE {WANTED} gauge\n{WANTED}{labels} {wanted}\n"
        f"{WANTED}_other 99\n{IN_FLIGHT}{labels} {in_flight}\n"
    )


def test_the_largest_number_of_all_subtasks_counts_and_requests_add_up() -> None:
    texts = [exposition(2, 10), exposition(3.0, 5), "", f"{WANTED} NaN\n{WANTED} 1e300\n{WANTED} -4\n"]
    assert observed_load(texts) == ObservedLoad(3, 15.0)
    unknown = "no pod of the pipeline reports how many replicas it needs"
    assert observed_load(["", f"{WANTED} NaN\n"]) == ObservedLoad(None, problems=unknown, pipeline=False)
    assert observed_load([exposition(2)], problems=["a", "b"]) == ObservedLoad(2, problems="a; b")
    assert observed_load([], problems=list("abcdef")).problems == "a; b; c; d; and 3 more"


@given(st.text())
def test_any_text_is_numbers_or_nothing(text: str) -> None:
    assert all(isinstance(value, float) for value in values(text + f"\n{WANTED} x y z\n", WANTED))


@given(
    st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(0, 20), st.integers(0, 500)), max_size=30),
    st.integers(0, 3),
    st.integers(3, 9),
)
def test_the_number_is_within_the_limits_or_as_it_was(
    said: list[tuple[int, int | None, int]], least: int, most: int
) -> None:
    decider, state, now_s, heard_s = Decider(ScalingLimits(least, most), 32, 20.0), STATE, 0.0, -1e9
    for after_s, wanted, in_flight in said:
        now_s += after_s
        decider.observe(ObservedLoad(wanted, in_flight), now_s)
        heard_s = now_s if wanted is not None else heard_s
        decision = decider.decide(state, now_s)
        if now_s - heard_s > 30:
            assert decision.wanted == state.replicas
        else:
            assert least <= decision.wanted <= most
        state = replace(state, replicas=decision.wanted, ready=decision.wanted)


def test_scaling_up_is_immediate_and_scaling_down_is_delayed() -> None:
    decider, found = Decider(ScalingLimits(0, 9), settle_s=60.0), []
    for now_s, wanted in ((0, 5), (10, 2), (60, 2), (71, 2), (80, 8)):
        decider.observe(ObservedLoad(wanted), now_s)
        found.append(decider.decide(STATE, now_s).wanted)
    assert found == [5, 5, 5, 2, 8]


def test_each_pool_has_its_share_of_target_and_work() -> None:
    one, other = (Decider(ScalingLimits(0, 9), 10, 60.0, share) for share in shares([1, 2]))
    state = replace(STATE, replicas=6, ready=6)
    for decider in (one, other):
        decider.observe(ObservedLoad(7, 55.0), 0.0)
    assert (one.decide(STATE, 0.0).wanted, other.decide(STATE, 0.0).wanted) == (3, 5)
    for decider in (one, other):
        decider.observe(ObservedLoad(0, 55.0), 100.0)
    found = [decider.decide(state, 100.0) for decider in (one, other)]
    assert [each.wanted for each in found] == [2, 4]
    assert "the pipeline needs 0, 0 of them here (share 1 of 3)" in found[0].reason


def test_new_controller_or_returning_pipeline_removes_none_at_once() -> None:
    decider = Decider(ScalingLimits(0, 9), 32, 300.0)
    eight = replace(STATE, replicas=8, ready=8)
    decider.observe(ObservedLoad(1, 0.0), 0.0)
    assert decider.decide(eight, 0.0).wanted == 8
    assert decider.decide(eight, 301.0).wanted == 8
    for now_s in range(305, 700, 5):
        assert decider.decide(eight, float(now_s)).wanted == 8
    decider.observe(ObservedLoad(0, 0.0), 700.0)
    assert decider.decide(eight, 700.0).wanted == 8
    decider.observe(ObservedLoad(0, 0.0), 1000.0)
    assert decider.decide(eight, 1000.0).wanted == 0


def test_replicas_that_all_boot_again_are_kept() -> None:
    decider = Decider(ScalingLimits(1, 9), settle_s=300.0)
    booting = replace(STATE, replicas=9, ready=0)
    assert decider.decide(booting, 0.0).wanted == 9, "the pipeline has not reported yet"
    decider.observe(ObservedLoad(2, 0.0), 5.0)
    assert decider.decide(booting, 5.0).wanted == 9
    decider.observe(ObservedLoad(2, 0.0), 306.0)
    assert decider.decide(booting, 306.0).wanted == 2


@pytest.mark.parametrize(("replicas", "ready", "wanted"), [(9, 0, 2), (9, 1, 9), (8, 0, 8)])
def test_initial_maximum_of_a_fleet_is_not_kept(replicas: int, ready: int, wanted: int) -> None:
    decider = Decider(ScalingLimits(1, 9), settle_s=300.0, begins_with_most=True)
    found = replace(STATE, replicas=replicas, ready=ready)
    assert decider.decide(found, 0.0).wanted == replicas, "the pipeline has not reported yet"
    decider.observe(ObservedLoad(2, 0.0), 5.0)
    assert decider.decide(found, 5.0).wanted == wanted


@pytest.mark.timeout(30)
def test_text_of_any_form_takes_time_linear_in_its_length() -> None:
    assert values("a{\n" * 100_000, "a") == ()
    assert values('a{"\n' * 100_000, "a") == ()


def test_requests_in_flight_keep_their_replicas() -> None:
    decider = Decider(ScalingLimits(0, 9), requests_per_replica=10, settle_s=0.0)
    decider.observe(ObservedLoad(0, 15.0), 0.0)
    four = replace(STATE, replicas=4, ready=4)
    assert decider.decide(four, 0.0).wanted == 4
    decision = decider.decide(four, 1.0)
    assert decision.wanted == 2
    assert "work in flight needs them" in decision.reason


def test_metrics_that_stop_change_nothing_and_the_reason_shows_it() -> None:
    decider = Decider(ScalingLimits(0, 9))
    assert "the load was not read yet: no change" in decider.decide(STATE, 0.0).reason
    decider.observe(ObservedLoad(7), 0.0)
    assert decider.decide(STATE, 30.0).wanted == 7
    decider.observe(ObservedLoad(None, 3.0), 31.0)
    late = decider.decide(STATE, 31.0)
    assert (late.wanted, "for 31 s: no change" in late.reason) == (2, True)


def body(**status: Any) -> dict[str, Any]:
    metadata = {"name": "engine", "uid": "u", "resourceVersion": "7"}
    return {"metadata": metadata, "spec": {"replicas": 2}, "status": status}


@pytest.mark.parametrize(
    ("condition", "trouble"),
    [
        (
            {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"},
            "pods are rejected: exceeded",
        ),
        (
            {"type": "Progressing", "status": "False", "message": "too long"},
            "does not become ready: too long",
        ),
    ],
)
def test_no_more_replicas_are_requested_if_none_start(condition: dict[str, str], trouble: str) -> None:
    state = DeploymentState.parse(body(readyReplicas=1, conditions=[condition]))
    decider = Decider(ScalingLimits(0, 9), settle_s=0.0)
    decider.observe(ObservedLoad(5), 0.0)
    decision = decider.decide(state, 0.0)
    assert decision.wanted == 2
    assert trouble in decision.reason
    decider.observe(ObservedLoad(1), 1.0)
    assert decider.decide(state, 1.0).wanted == 1


def test_incomplete_metrics_allow_scaling_up_only() -> None:
    decider, found = Decider(ScalingLimits(0, 9), settle_s=10.0), []
    four = replace(STATE, replicas=4, ready=4)
    for now_s, text in (
        (0, ObservedLoad(4)),
        (20, ObservedLoad(1, problems="no answer")),
        (25, ObservedLoad(None, problems="no answer")),
        (40, ObservedLoad(6, problems="no answer")),
        (55, ObservedLoad(1, problems="no answer")),
        # All are read again: until then, the present number counts as wanted.
        (60, ObservedLoad(1)),
        (80, ObservedLoad(1)),
    ):
        decider.observe(text, float(now_s))
        found.append(decider.decide(four, float(now_s)).wanted)
    assert found == [4, 4, 4, 6, 4, 4, 1]


def test_replicas_above_the_limit_stay_while_some_metrics_are_not_read() -> None:
    decider = Decider(ScalingLimits(0, 3), settle_s=0.0)
    decider.observe(ObservedLoad(1, problems="no answer"), 0.0)
    decision = decider.decide(replace(STATE, replicas=5, ready=5), 0.0)
    assert decision.wanted == 5
    assert "none is removed: some metrics are missing: no answer" in decision.reason


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://me:geheim@host:9249/metrics?token=geheim", "http://host:9249/metrics"),
        ("https://me:ge?h/ei#m@host/metrics#geheim", "https://host/metrics"),
        ("me:geheim@host", "host"),
        ("http://host/metrics", "http://host/metrics"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, said: str) -> None:
    assert shown(url) == said


def test_replicas_of_a_lost_node_count_and_are_not_ordered_twice() -> None:
    decider, found = Decider(ScalingLimits(0, 9), settle_s=0.0), []
    four = replace(STATE, replicas=4, ready=4)
    for now_s, ready in ((0, 4), (10, 1), (400, 0), (500, 4)):
        # What was running is asked for again, and the pipeline needs as many as before.
        decider.observe(ObservedLoad(4, 64.0), float(now_s))
        found.append(decider.decide(replace(four, ready=ready), float(now_s)).wanted)
    assert found == [4, 4, 4, 4]


def test_slow_boots_request_no_more_than_wanted() -> None:
    decider = Decider(ScalingLimits(0, 9), settle_s=0.0)
    booting = replace(STATE, replicas=3, ready=1)
    for now_s in range(0, 1800, 2):
        decider.observe(ObservedLoad(3, 32.0), float(now_s))
        assert decider.decide(booting, float(now_s)).wanted == 3


@pytest.mark.parametrize("wrong", [{}, {"metadata": {}}, {**body(), "spec": {"replicas": "2"}}])
def test_invalid_deployment_is_one_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(DeployError, match="has an unknown format"):
        DeploymentState.parse(wrong)


def test_each_pod_of_a_gateway_has_its_own_requests() -> None:
    gateway = [f"{PEAK_LOAD} 3.0\n", f"{PEAK_LOAD} 5.0\n{PEAK_LOAD} -1\n{PEAK_LOAD} 1e300\n"]
    assert observed_load([exposition(2, 4)], gateway) == ObservedLoad(2, 4.0, 8.0)
    assert observed_load(None, gateway) == ObservedLoad(0, gateway=8.0, pipeline=False)


def test_unreported_load_is_a_problem_not_zero() -> None:
    pipeline_only = observed_load([exposition(2)], [""])
    assert pipeline_only.wanted == 2
    assert pipeline_only.problems == "no pod of the gateway reports its load"
    gateway_only = observed_load([], [f"{PEAK_LOAD} 3\n"])
    assert (gateway_only.wanted, gateway_only.gateway) == (0, 3.0)
    assert gateway_only.problems == "no pod of the pipeline reports how many replicas it needs"
    assert observed_load([], []).wanted is None


def test_the_replicas_for_pipeline_and_gateway_add_up() -> None:
    decider = Decider(ScalingLimits(0, 20), requests_per_replica=10, settle_s=0.0)
    decider.observe(ObservedLoad(3, gateway=42.0), 0.0)
    decision = decider.decide(STATE, 0.0)
    assert decision.wanted == 8
    assert decision.reason == "the pipeline needs 3 and the gateway has 42 requests: 8 in all"


@given(st.integers(1, 500), st.integers(1, 3), st.booleans())
def test_an_idle_pipeline_takes_no_last_replica_from_the_gateway(
    requests: int, parts: int, pipeline: bool
) -> None:
    for share in shares([1, parts]):
        decider = Decider(ScalingLimits(0, 9), 32, settle_s=0.0, share=share)
        for now_s in (0.0, 100.0):
            decider.observe(ObservedLoad(0, gateway=float(requests), pipeline=pipeline), now_s)
            assert decider.decide(replace(STATE, replicas=1, ready=1), now_s).wanted >= 1
        decider.observe(ObservedLoad(0, gateway=0.0, pipeline=pipeline), 200.0)
        assert decider.decide(replace(STATE, replicas=1, ready=1), 200.0).wanted == 0


def test_a_waiting_request_of_the_gateway_starts_the_first_replica() -> None:
    decider = Decider(ScalingLimits(0, 9), 500, settle_s=0.0)
    none = replace(STATE, replicas=0, ready=0)
    decider.observe(ObservedLoad(0, gateway=0.0), 0.0)
    assert decider.decide(none, 0.0).wanted == 0
    decider.observe(ObservedLoad(0, gateway=1.0), 2.0)
    assert decider.decide(none, 2.0).wanted == 1


def test_requests_waiting_for_a_boot_scale_once() -> None:
    decider, found = Decider(ScalingLimits(0, 20), 10, settle_s=0.0), []
    for requests, replicas, ready in ((30, 1, 1), (60, 3, 1), (60, 4, 4)):
        decider.observe(ObservedLoad(0, gateway=float(requests)), 10.0)
        found.append(decider.decide(replace(STATE, replicas=replicas, ready=ready), 10.0))
    assert [each.wanted for each in found] == [3, 4, 6]
    assert found[1].reason.endswith("6 in all, 2 are starting")


def test_unreadable_gateway_allows_scaling_up_only() -> None:
    decider = Decider(ScalingLimits(0, 9), 32, settle_s=0.0)
    for now_s in (0.0, 100.0):
        decider.observe(observed_load([exposition(0)], []), now_s)
        decision = decider.decide(STATE, now_s)
        assert decision.wanted == 2
    assert decision.reason == (
        "the pipeline needs 0; none is removed: some metrics are missing: "
        "no pod of the gateway reports its load"
    )
    decider.observe(observed_load([exposition(4)], []), 101.0)
    assert decider.decide(STATE, 101.0).wanted == 4
