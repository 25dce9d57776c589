"""Invariants of the manifests of every deployment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.deployments import PIPELINE, VARIANTS, deployment_of, variant

from forebay.deploy.kubernetes import Manifest, render, to_yaml
from forebay.deploy.kubernetes.deployment import COMPONENT, owned_by
from forebay.deploy.kubernetes.manifest import KINDS
from forebay.deploy.kubernetes.pipeline import JOB_MANAGER
from forebay.deploy.kubernetes.render import PARTS


def pods(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod specification in a manifest."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from pods(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from pods(inner)


@pytest.fixture(params=VARIANTS)
def manifests(request: pytest.FixtureRequest) -> tuple[Manifest, ...]:
    return render(variant(request.param))


def test_every_pod_is_restricted(manifests: tuple[Manifest, ...]) -> None:
    found = [pod for each in manifests for pod in pods(each.body)]
    assert found
    for pod in found:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_every_mount_has_its_volume_and_scratch_is_bounded(manifests: tuple[Manifest, ...]) -> None:
    for each in manifests:
        for pod in pods(each.body):
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            assert len(volumes) == len(pod["volumes"])
            mounted = [
                mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]
            ]
            assert sorted(mounted) == sorted(volumes)
            assert all(
                "sizeLimit" in volume["emptyDir"] for volume in volumes.values() if "emptyDir" in volume
            )


def test_every_object_can_be_found_and_removed(manifests: tuple[Manifest, ...]) -> None:
    wanted = dict(part.split("=") for part in owned_by("triage").split(","))
    for each in manifests:
        assert wanted.items() <= each.body["metadata"]["labels"].items()
        assert each.body["apiVersion"] == KINDS[each.kind].api_version
        assert each.part in PARTS
    assert len({(each.kind, each.name) for each in manifests}) == len(manifests)


def test_every_network_policy_and_budget_selects_existing_pods(manifests: tuple[Manifest, ...]) -> None:
    made = [
        each.body["spec"][key]["metadata"]["labels"]
        for each in manifests
        for key in ("template", "podTemplate")
        if key in each.body.get("spec", {})
    ]
    # Flink labels each of its pods.
    made += [{**labels, **JOB_MANAGER} for labels in made if labels[COMPONENT] == "pipeline"]
    for each in manifests:
        if each.kind == "RayService":
            cluster = each.body["spec"]["rayClusterConfig"]
            groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
            made += [group["template"]["metadata"]["labels"] for group in groups]
    for each in manifests:
        if each.kind in ("NetworkPolicy", "PodDisruptionBudget", "Service", "InferencePool"):
            spec = each.body["spec"]
            chosen = spec["podSelector"] if each.kind == "NetworkPolicy" else spec["selector"]
            chosen = chosen.get("matchLabels", chosen)
            assert any(chosen.items() <= labels.items() for labels in made), each


@settings(max_examples=settings.default.max_examples // 2)
@given(st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True))
def test_any_pipeline_gets_valid_kubernetes_names(name: str) -> None:
    for each in render(deployment_of(VARIANTS["pools by dra"], {**PIPELINE, "name": name})):
        assert len(each.name) <= 63
        assert not each.name.endswith("-")


@pytest.mark.heavy
def test_the_same_deployment_gives_the_same_text() -> None:
    one, other = (deployment_of(VARIANTS["everything"]) for _ in range(2))
    assert to_yaml(render(one)) == to_yaml(render(other))


def test_the_network_is_closed_before_a_pod_starts() -> None:
    kinds = [each.kind for each in render(variant("everything"))]
    assert kinds.index("Deployment") > max(at for at, kind in enumerate(kinds) if kind == "NetworkPolicy")
    assert kinds[-1] == "FlinkDeployment"
