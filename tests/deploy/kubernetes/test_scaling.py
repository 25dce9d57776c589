"""KEDA's ScaledObject and the HorizontalPodAutoscaler."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from tests.harness.deployments import SCALING, VARIANTS, deployment_of, variant

from forebay.deploy.kubernetes import render
from forebay.deploy.kubernetes.scaling import formula, gateway_query, held_query, wanted_query
from forebay.deploy.kubernetes.settings import ReplicaScaling
from forebay.fleet.autoscale.settings import shares

COUNTS = st.integers(0, 50)
MAYBE = st.none() | COUNTS


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [dict(each.body) for each in render(variant(name)) if each.kind == kind]


BOTH, PIPELINE_ALONE, GATEWAY_ALONE = "everything", "smallest", "gateway alone"


def computed(name: str, per_replica: int, **values: float | None) -> float:
    """The value that KEDA computes by the formula of this deployment."""
    scaling = ReplicaScaling(max=1, requests_per_replica=per_replica, prometheus="http://p")
    return evaluate(formula(variant(name), scaling), values)


@given(COUNTS, MAYBE, MAYBE, MAYBE)
def test_wanted_number_is_used_unchanged(
    wanted: int, held: int | None, ready: int | None, replicas: int | None
) -> None:
    told = {"wanted": wanted, "held": held, "ready": ready, "replicas": replicas}
    assert computed(PIPELINE_ALONE, 8, **told) == wanted
    assert computed(BOTH, 8, gateway=0, **told) == wanted


@given(MAYBE, COUNTS, st.sampled_from([BOTH, PIPELINE_ALONE, GATEWAY_ALONE]))
def test_metrics_that_stop_change_nothing(ready: int | None, replicas: int, name: str) -> None:
    assert computed(name, 8, ready=ready, replicas=replicas) == replicas


@given(
    st.integers(0, 1000),
    MAYBE,
    COUNTS,
    st.sampled_from([(PIPELINE_ALONE, "held"), (GATEWAY_ALONE, "gateway")]),
)
def test_booting_replicas_are_not_ordered_twice_and_none_is_removed(
    requests: int, ready: int | None, replicas: int, source: tuple[str, str]
) -> None:
    name, trigger = source
    there = replicas if ready is None else min(ready, replicas)
    found = computed(name, 10, ready=there, replicas=replicas, **{trigger: requests})
    load = requests / 10
    assert found <= max(load, replicas)
    if load > replicas:
        assert found >= replicas
        assert found == max(load - (replicas - there), replicas)
    else:
        assert found == load


@given(COUNTS, st.integers(0, 1000), COUNTS, st.sampled_from(["wanted", "held"]))
def test_the_loads_of_pipeline_and_gateway_add_up(
    pipeline: int, gateway: int, replicas: int, trigger: str
) -> None:
    told: dict[str, float] = {trigger: pipeline if trigger == "wanted" else 10 * pipeline}
    found = computed(BOTH, 10, gateway=gateway, ready=replicas, replicas=replicas, **told)
    assert found == pytest.approx(pipeline + gateway / 10)


@given(MAYBE, MAYBE, MAYBE, COUNTS, COUNTS)
def test_no_replica_is_removed_while_a_load_is_unknown(
    wanted: int | None, held: int | None, gateway: int | None, ready: int, replicas: int
) -> None:
    told = {"wanted": wanted, "held": held, "gateway": gateway}
    found = computed(BOTH, 10, ready=min(ready, replicas), replicas=replicas, **told)
    if gateway is None or (wanted is None and held is None):
        assert found >= replicas
    if wanted is not None:
        assert found >= wanted
    if gateway:
        assert found > 0, "the last replica is not taken away under a client of the gateway"


def test_the_fields_of_the_scaled_object() -> None:
    (body,) = of_kind("everything", "ScaledObject")
    spec = body["spec"]
    assert spec["scaleTargetRef"]["name"] == "triage-engine"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 20)
    assert spec["fallback"]["behavior"] == "scalingModifiers"
    text = spec["advanced"]["scalingModifiers"]["formula"]
    named = {trigger["name"] for trigger in spec["triggers"]}
    assert named == {"wanted", "held", "gateway", "ready", "replicas"}
    assert all(re.search(rf"\b{name}\b", text) for name in named)
    down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] == 300
    assert down["tolerance"] == "0"


def test_each_pool_has_an_autoscaler_of_its_own() -> None:
    targets = [
        body["spec"]["scaleTargetRef"]["name"] for body in of_kind("pools by dra", "HorizontalPodAutoscaler")
    ]
    assert targets == ["triage-engine-prefill", "triage-engine-decode"]


def test_pools_add_up_to_the_wanted_number_within_the_fleets_limits() -> None:
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


def test_keda_queries_the_pools_share() -> None:
    prefill, decode = shares([1, 3])
    everything = variant("everything")
    assert wanted_query(everything, prefill).endswith(") * 1 / 4")
    assert held_query(everything, decode).endswith(") * 3 / 4")
    assert gateway_query(everything, decode).startswith("(sum(forebay_gateway_peak_load{")
    assert gateway_query(everything, decode).endswith(") * 3 / 4")
    (_, second) = of_kind("prefill and decode", "ScaledObject")
    behavior = second["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleUp"]["tolerance"] == "0", "a part of a replica is less than a tenth of them"


@pytest.mark.parametrize(
    ("name", "triggers"),
    [
        ("everything", {"wanted", "held", "gateway"}),
        ("inference pool, scaled", {"wanted", "held"}),
        ("gateway alone", {"gateway"}),
    ],
)
def test_keda_queries_existing_metrics(name: str, triggers: set[str]) -> None:
    settings = {**VARIANTS["inference pool"], "scaling": SCALING}
    made = deployment_of(settings) if name == "inference pool, scaled" else variant(name)
    (body,) = (each.body for each in render(made) if each.kind == "ScaledObject")
    spec = body["spec"]
    assert {each["name"] for each in spec["triggers"]} == {*triggers, "ready", "replicas"}
    names = set(re.findall(r"\b(wanted|held|gateway)\b", spec["advanced"]["scalingModifiers"]["formula"]))
    assert names == triggers


def test_adapter_serves_recorded_metrics() -> None:
    (body,) = of_kind("gateway, by an adapter", "HorizontalPodAutoscaler")
    external = body["spec"]["metrics"][0]["external"]["metric"]
    (rules,) = (
        body["data"]["forebay.rules.yaml"]
        for body in of_kind("gateway, by an adapter", "ConfigMap")
        if "forebay.rules.yaml" in body["data"]
    )
    (recorded,) = (rule for rule in YAML(typ="safe").load(rules)["groups"][0]["rules"] if "record" in rule)
    assert recorded["record"] == external["name"]
    assert recorded["labels"] == external["selector"]["matchLabels"]


@pytest.mark.parametrize("name", ["everything", "pools by dra", "gateway alone"])
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


TOKEN = re.compile(r"\s*(\?\?|<=|[-+/?:(),;=<]|\d+(?:\.\d+)?|\w+)")
BINARY: Mapping[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "??": (500, lambda one, other: other if one is None else one),
    "/": (60, operator.truediv),
    "+": (30, operator.add),
    "-": (30, operator.sub),
    "<": (20, operator.lt),
    "<=": (20, operator.le),
}
"""Operators of KEDA's expression language (expr) in formulas, with its precedences."""


def evaluate(text: str, values: Mapping[str, float | None]) -> float:
    """The value of a formula in expr."""
    tokens = TOKEN.findall(text)
    assert "".join(tokens) == re.sub(r"\s", "", text)
    names: dict[str, Any] = {name: value if value is None else float(value) for name, value in values.items()}
    found: Any = None
    while tokens:
        name = ""
        if tokens[0] == "let":
            _, name, equals = tokens[:3]
            assert equals == "="
            del tokens[:3]
        found = _choice(tokens, names)
        if name:
            names[name] = found
            assert tokens.pop(0) == ";"
    assert isinstance(found, float)
    return found


def _choice(tokens: list[str], names: Mapping[str, Any]) -> Any:
    found = _binary(tokens, names, 0)
    if tokens[:1] != ["?"]:
        return found
    tokens.pop(0)
    yes = _choice(tokens, names)
    assert tokens.pop(0) == ":"
    no = _choice(tokens, names)
    return yes if found else no


def _binary(tokens: list[str], names: Mapping[str, Any], least: int) -> Any:
    found = _operand(tokens, names)
    while tokens and tokens[0] in BINARY and BINARY[tokens[0]][0] >= least:
        rank, apply = BINARY[tokens.pop(0)]
        found = apply(found, _binary(tokens, names, rank + 1))
    return found


def _operand(tokens: list[str], names: Mapping[str, Any]) -> Any:
    token = tokens.pop(0)
    if token == "-":
        return -_operand(tokens, names)
    if token in ("max", "min"):
        assert tokens.pop(0) == "("
        arguments = [_choice(tokens, names)]
        while tokens[0] == ",":
            tokens.pop(0)
            arguments.append(_choice(tokens, names))
        assert tokens.pop(0) == ")"
        return (max if token == "max" else min)(arguments)
    if token == "(":
        found = _choice(tokens, names)
        assert tokens.pop(0) == ")"
        return found
    return float(token) if token[0].isdigit() else names.get(token)
