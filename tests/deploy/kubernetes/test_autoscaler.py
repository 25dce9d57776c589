"""The controller's manifests: its settings, and its minimal rights."""

from __future__ import annotations

import pytest
from tests.harness.deployments import ENGINE, JOB, deployment_of, variant

from forebay.deploy.kubernetes import render
from forebay.errors import SettingError

FOUND = {(each.kind, each.name): each.body for each in render(variant("controller"))}
NAMES = ["triage-engine-prefill", "triage-engine-decode"]


def test_controller_gets_its_targets_and_limits() -> None:
    spec = FOUND["Deployment", "triage-autoscaler"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    args = spec["template"]["spec"]["containers"][0]["args"]
    assert args[:4] == ["autoscale", "kubernetes", f"{NAMES[0]}=1", f"{NAMES[1]}=2"]
    assert {"--min=0", "--max=6"} < set(args)
    assert "--pods=app.kubernetes.io/instance=triage,app.kubernetes.io/component=pipeline" in args


def test_controller_has_few_rights_besides_scaling_its_deployments() -> None:
    rules = FOUND["Role", "triage-autoscaler"]["rules"]
    assert {(each["resources"][0], *each["verbs"]) for each in rules} == {
        ("deployments", "get"),
        ("deployments/scale", "patch"),
        ("leases", "get", "update"),
        ("leases", "create"),
        ("pods", "list"),
        ("events", "create"),
    }
    leases = [f"{name}-autoscale" for name in NAMES]
    assert [each.get("resourceNames") for each in rules] == [NAMES, NAMES, leases, None, None, None]


def test_controller_reads_the_existing_pods() -> None:
    def pods_of(name: str) -> list[str]:
        found = {(each.kind, each.name): each.body for each in render(variant(name))}
        spec = found["Deployment", "triage-autoscaler"]["spec"]["template"]["spec"]
        return [word for word in spec["containers"][0]["args"] if "pods=" in word]

    component = "app.kubernetes.io/instance=triage,app.kubernetes.io/component="
    assert pods_of("controller") == [f"--pods={component}pipeline"]
    assert pods_of("gateway alone, by a controller") == [f"--gateway-pods={component}gateway"]


def test_controller_may_read_the_gateways_metrics() -> None:
    found = {(each.kind, each.name): each.body for each in render(variant("gateway alone, by a controller"))}
    ingress = found["NetworkPolicy", "triage-gateway"]["spec"]["ingress"]
    (readers,) = [each["from"] for each in ingress if each["ports"][0]["port"] == 9090]
    labels = found["Deployment", "triage-autoscaler"]["spec"]["template"]["metadata"]["labels"]
    assert any(
        each["podSelector"]["matchLabels"].items() <= labels.items()
        for each in readers
        if "podSelector" in each
    )
    egress = found["NetworkPolicy", "triage-autoscaler"]["spec"]["egress"]
    assert [rule["ports"][0]["port"] for rule in egress if "to" in rule] == [9090]


def test_only_controller_and_prometheus_read_pipeline_metrics() -> None:
    ingress = FOUND["NetworkPolicy", "triage"]["spec"]["ingress"]
    (readers,) = [each["from"] for each in ingress if each.get("ports", [{}])[0].get("port") == 9249]
    assert {
        each["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for each in readers
        if "podSelector" in each
    } == {"autoscaler"}
    policy = FOUND["NetworkPolicy", "triage-autoscaler"]["spec"]
    assert policy["ingress"] == []


def test_controller_needs_an_image() -> None:
    settings = {"pipeline": JOB, "engine": ENGINE, "scaling": {"by": "controller", "max": 2}}
    with pytest.raises(SettingError, match=r"scaling\.image: missing; the controller needs one"):
        deployment_of(settings)
