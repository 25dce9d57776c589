"""The gateway."""

from __future__ import annotations

from pathlib import Path

from tests.harness.deployments import variant

from forebay.deploy.kubernetes import render
from forebay.fleet.endpoints import KubernetesReplicas
from forebay.fleet.ray_replicas import RayReplicas
from forebay.gateway.spec import load_gateway


def test_it_reads_settings_that_lead_to_every_replica(tmp_path: Path) -> None:
    found = {(each.kind, each.name): each.body for each in render(variant("everything"))}
    text = found["ConfigMap", "triage-gateway"]["data"]["gateway.yaml"]
    (tmp_path / "gateway.yaml").write_text(text)
    spec = load_gateway(tmp_path / "gateway.yaml")
    assert spec.engine.replicas() == KubernetesReplicas("triage-engine:http")
    assert spec.engine.model == "smollm2"
    assert spec.engine.api_key is not None
    assert spec.monitoring.port == 9090


def test_it_finds_both_pools_where_one_prefills(tmp_path: Path) -> None:
    found = {(each.kind, each.name): each.body for each in render(variant("prefill and decode"))}
    (tmp_path / "gateway.yaml").write_text(found["ConfigMap", "triage-gateway"]["data"]["gateway.yaml"])
    spec = load_gateway(tmp_path / "gateway.yaml")
    assert spec.engine.replicas() == KubernetesReplicas("triage-engine-decode:http")
    assert spec.engine.prefill is not None
    assert spec.engine.prefill.replicas() == KubernetesReplicas("triage-engine-prefill:http")


def test_it_may_list_and_watch_endpoints_and_nothing_else() -> None:
    found = {(each.kind, each.name): each.body for each in render(variant("everything"))}
    (rule,) = found["Role", "triage-gateway"]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["endpointslices"], ["list", "watch"])


def test_with_ray_it_asks_the_clusters_and_has_no_rights(tmp_path: Path) -> None:
    found = {(each.kind, each.name): each.body for each in render(variant("ray, scaled"))}
    (tmp_path / "gateway.yaml").write_text(found["ConfigMap", "triage-gateway"]["data"]["gateway.yaml"])
    spec = load_gateway(tmp_path / "gateway.yaml")
    assert spec.engine.replicas() == RayReplicas("http://triage-ray:8265/triage")
    assert ("Role", "triage-gateway") not in found
    pod = found["Deployment", "triage-gateway"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False


def test_it_has_more_time_to_stop_than_its_answers_may_take() -> None:
    deployment = variant("everything")
    assert deployment.gateway is not None
    (pod,) = [
        each.body["spec"]["template"]["spec"]
        for each in render(deployment)
        if (each.kind, each.name) == ("Deployment", "triage-gateway")
    ]
    assert pod["terminationGracePeriodSeconds"] > deployment.gateway.drain.grace_s
