"""Pods may call the addresses in their settings, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.deployments import GATEWAY, JOB, PIPELINE, VARIANTS, deployment_of, variant

from forebay.deploy.kubernetes import Deployment, render
from forebay.deploy.kubernetes.network import ports_in

DNS = {53, 5353}
API_SERVER = {443, 6443, 8443, 16443}
PART = "app.kubernetes.io/component"


def egress_of(deployment: Deployment, name: str) -> tuple[set[int], set[str]]:
    """The ports that are open to all addresses, and the components whose pods are reached at any port."""
    (policy,) = [
        each.body["spec"] for each in render(deployment) if (each.kind, each.name) == ("NetworkPolicy", name)
    ]
    ports = {port["port"] for rule in policy["egress"] if "to" not in rule for port in rule["ports"]}
    peers = [peer for rule in policy["egress"] for peer in rule.get("to", [])]
    return ports, {peer.get("podSelector", {}).get("matchLabels", {PART: "any"})[PART] for peer in peers}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_policy_limits_what_its_pods_call(name: str) -> None:
    for each in render(variant(name)):
        if each.kind == "NetworkPolicy":
            assert each.body["spec"]["policyTypes"] == ["Ingress", "Egress"]
            # A rule without ports and peers opens everything.
            assert all(rule.get("ports") or rule.get("to") for rule in each.body["spec"]["egress"])


def test_a_pipeline_reaches_its_brokers_store_and_replicas() -> None:
    assert egress_of(variant("smallest"), "triage") == (DNS | API_SERVER | {9092}, {"pipeline", "engine"})
    assert egress_of(variant("ray"), "triage")[1] == {"pipeline", "engine", "ray"}


def test_a_gateway_reaches_its_replicas_alone() -> None:
    assert egress_of(variant("everything"), "triage-gateway") == (DNS | API_SERVER, {"engine"})
    # With Ray it needs no API server.
    assert egress_of(variant("ray, scaled"), "triage-gateway") == (DNS, {"engine", "ray"})


def test_addresses_in_the_environment_and_listed_ports_are_open() -> None:
    more: dict[str, Any] = {"env": {"AWS_ENDPOINT_URL": "http://minio:9000"}, "egress_ports": [9094]}
    settings = VARIANTS["everything"] | {"pipeline": JOB | more, "gateway": GATEWAY | more}
    assert egress_of(deployment_of(settings), "triage")[0] == DNS | API_SERVER | {9000, 9092, 9094}
    assert egress_of(deployment_of(settings), "triage-gateway")[0] == DNS | API_SERVER | {9000, 9094}


def test_replicas_elsewhere_are_reached() -> None:
    elsewhere = PIPELINE | {"engine": {"url": "http://gpu-box:8000", "model": "m"}, "scaling": None}
    assert 8000 in egress_of(deployment_of({"pipeline": JOB}, elsewhere), "triage")[0]
    elsewhere |= {"engine": {"kubernetes": "other/vllm:http", "model": "m"}}
    assert egress_of(deployment_of({"pipeline": JOB}, elsewhere), "triage")[1] == {"pipeline", "any"}
    assert egress_of(variant("inference pool"), "triage")[1] == {"pipeline", "engine", "any"}


@pytest.mark.parametrize(
    ("value", "ports"),
    [
        ("http://a/b", [80]),
        ("https://u:p@a.b:8443/c:9?d", [8443]),
        ("wss://[::1]:7/x", [7]),
        ("s3://bucket/prefix", [443]),
        ("file:///data", [0]),
        ("a:9092,b.c:9093", [9092, 9093]),
        ("{{ text }}", []),
        ({"a": ["http://b:1", {"c": "d:2"}], "e": 3, "f": None}, [1, 2]),
    ],
)
def test_ports_of_addresses(value: Any, ports: list[int]) -> None:
    assert list(ports_in(value)) == ports


def test_an_engine_reaches_the_addresses_in_its_settings() -> None:
    more: dict[str, Any] = {
        "env": {"HTTPS_PROXY": "http://proxy:3128", "BUILD": "a:99999"},
        "args": ["--otlp-traces-endpoint", "http://collector:4317"],
        "egress_ports": [8090],
    }
    settings = VARIANTS["smallest"]
    engine = settings["engine"] | more
    ports, _ = egress_of(deployment_of(settings | {"engine": engine}), "triage-engine")
    assert ports == DNS | {443, 3128, 4317, 8090}


def test_cache_events_of_replicas_reach_those_who_route() -> None:
    pipeline = PIPELINE | {"engine": PIPELINE["engine"] | {"kv_events": "tcp://{host}:5557"}}
    deployment = deployment_of(VARIANTS["smallest"], pipeline)
    (policy,) = [
        each.body["spec"]
        for each in render(deployment)
        if (each.kind, each.name) == ("NetworkPolicy", "triage-engine")
    ]
    rules = [rule for rule in policy["ingress"] if {"protocol": "TCP", "port": 5557} in rule.get("ports", ())]
    assert [peer["podSelector"]["matchLabels"][PART] for peer in rules[0]["from"]] == ["pipeline"]
