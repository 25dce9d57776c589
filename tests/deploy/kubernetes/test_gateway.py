"""The gateway."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.deployments import ENGINE, GATEWAY, VARIANTS, deployment_of, variant

from forebay.deploy.kubernetes import Deployment, render
from forebay.errors import SettingError
from forebay.fleet.endpoints import KubernetesReplicas, RayReplicas
from forebay.gateway.spec import GatewaySpec, load_gateway

KEYS = "keys: [{name: team, key: {env: GATEWAY_KEY}}]\n"


def test_gateway_settings_reach_every_replica(tmp_path: Path) -> None:
    found = {(each.kind, each.name): each.body for each in render(variant("everything"))}
    text = found["ConfigMap", "triage-gateway"]["data"]["gateway.yaml"]
    (tmp_path / "gateway.yaml").write_text(text)
    spec = load_gateway(tmp_path / "gateway.yaml")
    assert spec.engine.replicas() == KubernetesReplicas("triage-engine:http")
    assert spec.engine.model == "smollm2"
    assert spec.engine.api_key is not None
    assert spec.monitoring.port == 9090


def test_gateway_finds_both_pools(tmp_path: Path) -> None:
    found = {(each.kind, each.name): each.body for each in render(variant("prefill and decode"))}
    (tmp_path / "gateway.yaml").write_text(found["ConfigMap", "triage-gateway"]["data"]["gateway.yaml"])
    spec = load_gateway(tmp_path / "gateway.yaml")
    assert spec.engine.replicas() == KubernetesReplicas("triage-engine-decode:http")
    assert spec.engine.prefill is not None
    assert spec.engine.prefill.replicas() == KubernetesReplicas("triage-engine-prefill:http")


def test_gateway_may_only_list_and_watch_endpoints() -> None:
    found = {(each.kind, each.name): each.body for each in render(variant("everything"))}
    (rule,) = found["Role", "triage-gateway"]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["endpointslices"], ["list", "watch"])


def test_gateway_on_ray_queries_the_clusters_without_rights(tmp_path: Path) -> None:
    found = {(each.kind, each.name): each.body for each in render(variant("ray, scaled"))}
    (tmp_path / "gateway.yaml").write_text(found["ConfigMap", "triage-gateway"]["data"]["gateway.yaml"])
    spec = load_gateway(tmp_path / "gateway.yaml")
    assert spec.engine.replicas() == RayReplicas("http://triage-ray:8265/triage")
    assert ("Role", "triage-gateway") not in found
    pod = found["Deployment", "triage-gateway"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False


def test_grace_period_exceeds_the_answer_time() -> None:
    deployment = variant("everything")
    assert deployment.gateway is not None
    (pod,) = [
        each.body["spec"]["template"]["spec"]
        for each in render(deployment)
        if (each.kind, each.name) == ("Deployment", "triage-gateway")
    ]
    assert pod["terminationGracePeriodSeconds"] > deployment.gateway.drain.grace_s


def settings_of(deployment: Deployment, folder: Path) -> GatewaySpec:
    """The gateway's settings in a deployment."""
    found = {(each.kind, each.name): each.body for each in render(deployment)}
    (folder / "gateway.yaml").write_text(found["ConfigMap", "triage-gateway"]["data"]["gateway.yaml"])
    return load_gateway(folder / "gateway.yaml")


@pytest.mark.parametrize(
    ("name", "waits"),
    [("everything", True), ("gateway alone", True), ("ray, scaled", True), ("gateway, by an adapter", False)],
)
def test_requests_wait_for_the_first_replica_if_there_may_be_none(
    name: str, waits: bool, tmp_path: Path
) -> None:
    assert (settings_of(variant(name), tmp_path).relay.absent_s is None) is waits


def test_a_wait_that_is_too_short_to_start_a_replica_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(KEYS + "relay: {absent_s: 2, attempts: 5}\n")
    gateway = {**GATEWAY, "config": str(tmp_path / "own.yaml")}
    with pytest.raises(SettingError, match=r"relay\.absent_s: expected none with scaling\.min: 0, found 2: "):
        deployment_of({**VARIANTS["everything"], "gateway": gateway})
    (tmp_path / "own.yaml").write_text(KEYS + "relay: {attempts: 5}\n")
    relay = settings_of(deployment_of({**VARIANTS["everything"], "gateway": gateway}), tmp_path).relay
    assert (relay.absent_s, relay.attempts) == (None, 5)


def test_without_a_pipeline_it_is_the_gateway_that_has_the_engines_key(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(KEYS + "engine: {api_key: {env: ENGINE_KEY}}\n")
    alone = {"name": "triage", "engine": ENGINE, "gateway": {**GATEWAY, "config": str(tmp_path / "own.yaml")}}
    made = deployment_of(alone, None)
    spec = settings_of(made, tmp_path)
    assert spec.engine.replicas() == KubernetesReplicas("triage-engine:http")
    assert spec.engine.api_key is not None
    assert spec.engine.model == ENGINE["model"]
    (pod,) = (
        each.body["spec"]["template"]["spec"]
        for each in render(made)
        if (each.kind, each.name) == ("Deployment", "triage-engine")
    )
    keys = {each["name"]: each.get("valueFrom") for each in pod["containers"][0]["env"]}
    assert keys["VLLM_API_KEY"] == {"secretKeyRef": {"name": "forebay", "key": "engine-key"}}
    with pytest.raises(SettingError, match=r"gateway\.secrets: ENGINE_KEY is missing"):
        deployment_of({**alone, "gateway": {**alone["gateway"], "secrets": {}}}, None)


@pytest.mark.parametrize("config", [None, "relay: {attempts: 5}\n"])
def test_gateway_without_keys_is_refused(tmp_path: Path, config: str | None) -> None:
    gateway = {**GATEWAY, "config": config and str(tmp_path / "own.yaml")}
    (tmp_path / "own.yaml").write_text(config or "")
    with pytest.raises(SettingError, match=r"gateway\.config: keys: expected at least one, found none"):
        deployment_of({**VARIANTS["everything"], "gateway": gateway})
