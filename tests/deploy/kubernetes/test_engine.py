"""The vLLM replicas."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from tests.harness.deployments import ENGINE, JOB, SCALING, deployment_of, variant

from forebay.deploy.kubernetes import render
from forebay.deploy.kubernetes.engine import AFTER_DRAIN_S


def made(name: str = "triage-engine", **engine: Any) -> dict[str, Any]:
    """The replicas' Deployment with these engine settings."""
    deployment = deployment_of({"pipeline": JOB, "engine": {**ENGINE, **engine}})
    found = {(each.kind, each.name): each.body for each in render(deployment)}
    return dict(found["Deployment", name])


def container(deployment: dict[str, Any]) -> dict[str, Any]:
    return dict(deployment["spec"]["template"]["spec"]["containers"][0])


def test_engine_serves_the_model_under_the_pipelines_name() -> None:
    args = container(made(args=["--max-model-len=4096"]))["args"]
    assert args[0] == ENGINE["model"]
    assert "--served-model-name=smollm2" in args
    assert args[-1] == "--max-model-len=4096"


def test_the_pipelines_key_is_the_engines_key() -> None:
    env = {each["name"]: each for each in container(made())["env"]}
    assert env["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "forebay", "key": "engine-key"}


def test_different_engine_key_is_allowed() -> None:
    """A variable is there once, or clusters refuse it; after the secrets, whose names it may use."""
    mine = {"name": "mine", "key": "key"}
    env = container(made(secrets={"MINE": mine}, env={"VLLM_API_KEY": "$(MINE)"}))["env"]
    assert [each for each in env if each["name"] == "VLLM_API_KEY"] == [
        {"name": "VLLM_API_KEY", "value": "$(MINE)"}
    ]
    names = [each["name"] for each in env]
    assert len(set(names)) == len(names)
    assert names.index("MINE") < names.index("VLLM_API_KEY")
    both = container(made(secrets={"VLLM_API_KEY": mine}, env={"VLLM_API_KEY": "$(MINE)"}))["env"]
    (found,) = (each for each in both if each["name"] == "VLLM_API_KEY")
    assert found["valueFrom"]["secretKeyRef"] == mine


def test_an_accelerator_is_a_resource_or_a_claim() -> None:
    by_resource = container(made(gpu={"resource": "amd.com/gpu", "count": 2}))["resources"]
    assert by_resource["limits"]["amd.com/gpu"] == by_resource["requests"]["amd.com/gpu"] == "2"
    by_claim = made(gpu={"device_class": "gpu.nvidia.com"})
    assert container(by_claim)["resources"]["claims"] == [{"name": "gpu"}]
    claims = by_claim["spec"]["template"]["spec"]["resourceClaims"]
    assert claims == [{"name": "gpu", "resourceClaimTemplateName": "triage-engine"}]


def test_loading_and_draining_may_take_as_long_as_the_file_allows() -> None:
    deployment = made(startup_s=601, drain_s=90)
    probe = container(deployment)["startupProbe"]
    assert 601 <= probe["periodSeconds"] * probe["failureThreshold"] < 601 + probe["periodSeconds"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 90 + AFTER_DRAIN_S
    assert container(deployment)["lifecycle"]["preStop"]["exec"]["command"][2] == "90"
    assert deployment["spec"]["progressDeadlineSeconds"] > 601


@pytest.mark.parametrize(("rollout", "surge", "away"), [("surge", 1, 0), ("replace", 0, 1)])
def test_new_version_runs_next_to_the_old_one_or_replaces_it(rollout: str, surge: int, away: int) -> None:
    update = made(rollout=rollout)["spec"]["strategy"]["rollingUpdate"]
    assert update == {"maxSurge": surge, "maxUnavailable": away}


def test_the_autoscaler_alone_owns_the_number_of_replicas() -> None:
    assert made(replicas=3)["spec"]["replicas"] == 3
    scaled = deployment_of({"pipeline": JOB, "engine": ENGINE, "scaling": SCALING})
    for each in render(scaled):
        if each.kind == "Deployment":
            assert "replicas" not in each.body["spec"]


def test_each_pool_has_deployment_service_and_budget_and_one_is_shared() -> None:
    found = {(each.kind, each.name): each.body for each in render(variant("pools by dra"))}
    for pool in ("prefill", "decode"):
        name = f"triage-engine-{pool}"
        deployment = found["Deployment", name]["spec"]
        assert deployment["selector"]["matchLabels"]["forebay/pool"] == pool
        assert found["Service", name]["spec"]["selector"] == deployment["selector"]["matchLabels"]
        assert ("PodDisruptionBudget", name) in found
    shared = found["Service", "triage-engine"]["spec"]
    assert "forebay/pool" not in shared["selector"]
    assert shared["clusterIP"] == "None"
    assert container(dict(found["Deployment", "triage-engine-decode"]))["args"][-1] == "--max-num-seqs=64"


APART = {(each.kind, each.name): dict(each.body) for each in render(variant("prefill and decode"))}
POOLS = ("triage-engine-prefill", "triage-engine-decode")


def test_prefill_and_decode_replicas_transfer_kv_caches() -> None:
    for name in POOLS:
        found = container(APART["Deployment", name])
        (config,) = [each for each in found["args"] if each.startswith("--kv-transfer-config=")]
        assert orjson.loads(config.partition("=")[2]) == {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
        }
        env = {each["name"]: each for each in found["env"]}
        host = env["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]
        assert host == {"fieldRef": {"fieldPath": "status.podIP"}}
        assert {each["name"] for each in found["ports"]} == {"http", "nixl"}
    ordinary = container(made())
    assert not any(each.startswith("--kv-transfer") for each in ordinary["args"])
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" not in {each["name"] for each in ordinary["env"]}
    # An explicit address is kept.
    pools = [{"name": "a", "role": "prefill"}, {"name": "b", "role": "decode"}]
    own = container(made("triage-engine-a", pools=pools, env={"VLLM_NIXL_SIDE_CHANNEL_HOST": "rdma"}))
    assert [each["value"] for each in own["env"] if each["name"].startswith("VLLM_NIXL")] == ["rdma"]


def test_each_role_has_its_own_service() -> None:
    services = {name: body["spec"] for (kind, name), body in APART.items() if kind == "Service"}
    assert set(services) == {*POOLS, "triage-gateway", "triage-queue"}
    for name in POOLS:
        assert services[name]["selector"]["forebay/pool"] == name.rpartition("-")[2]


def test_only_replicas_reach_each_other_at_all_ports() -> None:
    policy = APART["NetworkPolicy", "triage-engine"]["spec"]
    replicas = {"podSelector": {"matchLabels": policy["podSelector"]["matchLabels"]}}
    assert [each for each in policy["ingress"] if "ports" not in each] == [{"from": [replicas]}]
    assert [each for each in policy["egress"] if "ports" not in each] == [{"to": [replicas]}]
    for name in ("smallest", "pools by dra"):
        (other,) = (
            each.body["spec"]
            for each in render(variant(name))
            if (each.kind, each.name) == ("NetworkPolicy", "triage-engine")
        )
        assert all("ports" in each for each in (*other["ingress"], *other["egress"]))


def test_without_a_hub_only_dns_is_reachable() -> None:
    policies = {
        each.name: each.body["spec"]
        for each in render(variant("pools by dra"))
        if each.kind == "NetworkPolicy"
    }
    ports = [port["port"] for rule in policies["triage-engine"]["egress"] for port in rule["ports"]]
    assert set(ports) == {53, 5353}
    env = container(made(egress=False))["env"]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in env
