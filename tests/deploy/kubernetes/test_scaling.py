"""KEDA's ScaledObject and the HorizontalPodAutoscaler."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.deployments import variant

from forebay.autoscale.shares import shares
from forebay.deploy.kubernetes import render
from forebay.deploy.kubernetes.scaling import formula, held_query, wanted_query
from forebay.deploy.kubernetes.settings import ScalingSpec

COUNTS = st.integers(0, 50)
MAYBE = st.none() | COUNTS


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [dict(each.body) for each in render(variant(name)) if each.kind == kind]


def computed(per_replica: int, **values: float | None) -> float:
    """What the formula says: its few forms, in Python."""
    text = formula(ScalingSpec(max=1, requests_per_replica=per_replica, prometheus="http://p"))
    names: dict[str, Any] = dict(values)
    *lets, last = [line.strip().rstrip(";") for line in text.strip().splitlines()]
    for line in lets:
        found = re.fullmatch(r"let (\w+) = (.*)", line)
        assert found is not None
        names[found[1]] = _evaluate(found[2], names)
    return float(_evaluate(last, names))


def _evaluate(text: str, names: dict[str, Any]) -> Any:
    text = re.sub(r"(\w+) \?\? ([-\w.]+)", r"(\2 if \1 is None else \1)", text)
    text = re.sub(r"(\w+) \?\? \((.*)\)$", r"(_or(\2) if \1 is None else \1)", text)
    if "_or(" in text:
        text = re.sub(
            r"_or\((.*?) \? (.*?) : (.*?) \? (.*?) : (.*)\) if", r"(\2 if \1 else \4 if \3 else \5) if", text
        )
    return eval(text, {"__builtins__": {"max": max}}, names)


@given(COUNTS, MAYBE, MAYBE, MAYBE)
def test_the_wanted_number_is_taken_as_it_is(
    wanted: int, held: int | None, ready: int | None, replicas: int | None
) -> None:
    assert computed(8, wanted=wanted, held=held, ready=ready, replicas=replicas) == wanted


@given(MAYBE, COUNTS)
def test_metrics_that_stop_change_nothing(ready: int | None, replicas: int) -> None:
    assert computed(8, wanted=None, held=None, ready=ready, replicas=replicas) == replicas


@given(st.integers(0, 1000), MAYBE, COUNTS)
def test_by_load_replicas_that_boot_are_not_ordered_twice_and_none_is_taken_away_for_them(
    held: int, ready: int | None, replicas: int
) -> None:
    there = replicas if ready is None else min(ready, replicas)
    found = computed(10, wanted=None, held=held, ready=there, replicas=replicas)
    load = held / 10
    assert found <= max(load, replicas)
    if load > replicas:
        assert found >= replicas
        assert found == max(load - (replicas - there), replicas)
    else:
        assert found == load


def test_the_fields_of_the_scaled_object() -> None:
    (body,) = of_kind("everything", "ScaledObject")
    spec = body["spec"]
    assert spec["scaleTargetRef"]["name"] == "triage-engine"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 20)
    assert spec["fallback"]["behavior"] == "scalingModifiers"
    text = spec["advanced"]["scalingModifiers"]["formula"]
    named = {trigger["name"] for trigger in spec["triggers"]}
    assert named == {"wanted", "held", "ready", "replicas"}
    assert all(re.search(rf"\b{name}\b", text) for name in named)
    down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] == 300
    assert down["tolerance"] == "0"


def test_each_pool_has_an_autoscaler_of_its_own() -> None:
    targets = [
        body["spec"]["scaleTargetRef"]["name"] for body in of_kind("pools by dra", "HorizontalPodAutoscaler")
    ]
    assert targets == ["triage-engine-prefill", "triage-engine-decode"]


def test_pools_together_have_what_is_wanted_and_stay_within_the_fleets_limits() -> None:
    specs = [body["spec"] for body in of_kind("pools by dra", "HorizontalPodAutoscaler")]
    assert [(each["minReplicas"], each["maxReplicas"]) for each in specs] == [(1, 2), (1, 6)]
    targets = [each["metrics"][0]["external"]["target"]["averageValue"] for each in specs]
    assert targets == ["4", "1334m"]
    # As the autoscaler of Kubernetes divides, in thousandths.
    for wanted in range(1, 9):
        found = [-(-wanted * 1000 // thousandths) for thousandths in (4000, 1334)]
        assert found == [-(-wanted // 4), -(-wanted * 3 // 4)]
    # A fourth of a replica is less than the tenth of two that would count as none.
    assert all(each["behavior"]["scaleUp"]["tolerance"] == "0" for each in specs[1:])


def test_keda_asks_for_the_pools_share() -> None:
    prefill, decode = shares([1, 3])
    everything = variant("everything")
    assert wanted_query(everything, prefill).endswith(" * 1 / 4)")
    assert wanted_query(everything, decode).startswith("ceil(max(")
    assert held_query(everything, decode).endswith(") * 3 / 4")


@pytest.mark.parametrize("name", ["everything", "pools by dra"])
def test_queries_use_the_labels_that_the_pod_monitor_gives(name: str) -> None:
    (monitor,) = of_kind(name, "PodMonitor")
    given_labels = {re.sub(r"\W", "_", label) for label in monitor["spec"]["podTargetLabels"]}
    queries = [
        trigger["metadata"]["query"]
        for body in of_kind(name, "ScaledObject")
        for trigger in body["spec"]["triggers"]
        if trigger["type"] == "prometheus"
    ]
    for query in queries:
        assert set(re.findall(r'(\w+)="', query)) <= given_labels
