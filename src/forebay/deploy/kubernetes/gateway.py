"""The gateway's manifests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forebay.deploy.kubernetes.deployment import GATEWAY, GATEWAY_PORT, METRICS_PORT, Deployment
from forebay.deploy.kubernetes.manifest import Manifest
from forebay.deploy.kubernetes.pod_settings import GatewayPods
from forebay.deploy.kubernetes.pods import (
    CONFIG_PATH,
    ENDPOINTS,
    config_files,
    config_hash,
    environment,
    http_probe,
    mounted,
    placement,
    pod_spec,
    resources,
    role,
    scratch,
    spread,
)
from forebay.gateway.spec import DrainSpec
from forebay.yaml_document import to_yaml as document_yaml

FILE = "gateway.yaml"
NOTICE_S = 10.0
AFTER_DRAIN_S = 15
CONTAINER = "spec/template/spec/containers/0"


def gateway_manifests(deployment: Deployment) -> Iterator[Manifest]:
    spec = deployment.settings.gateway
    if spec is None:
        return
    chosen = deployment.selector(GATEWAY)
    yield deployment.manifest(
        GATEWAY,
        "ServiceAccount",
        {"automountServiceAccountToken": False},
        annotations=spec.service_account_annotations,
    )
    if "kubernetes" in deployment.engine_place:
        yield from role(deployment, GATEWAY, [ENDPOINTS], "The router sees replicas come and go.")
    yield deployment.manifest(GATEWAY, "ConfigMap", {"data": _files(deployment)})
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    yield deployment.manifest(GATEWAY, "Service", {"spec": {"selector": chosen, "ports": ports}})
    yield _deployment(deployment, spec)
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": chosen}}
    yield deployment.manifest(GATEWAY, "PodDisruptionBudget", {"spec": budget})


def _files(deployment: Deployment) -> dict[str, str]:
    return {FILE: document_yaml(gateway_document(deployment))}


def gateway_document(deployment: Deployment) -> dict[str, Any]:
    document = dict(deployment.gateway_document or {})
    given = document.get("engine")
    kept = {"kv_events", "api_key"}
    engine = {key: value for key, value in given.items() if key in kept} if isinstance(given, dict) else {}
    key = deployment.api_key
    if key is not None and "api_key" not in engine:
        engine["api_key"] = key.model_dump(exclude_none=True)
    if deployment.prefill_service is not None:
        engine["prefill"] = {"kubernetes": deployment.prefill_service}
    document["engine"] = {**deployment.engine_place, "model": deployment.served_model, **engine}
    drain = document.get("drain")
    # Long enough for the Service to drop the address.
    document["drain"] = {"notice_s": NOTICE_S, **(drain if isinstance(drain, dict) else {})}
    scaling = deployment.settings.scaling
    if scaling is not None and scaling.min == 0:
        # A request starts the first replica, so it must reach the gateway first, and wait.
        document["relay"] = {**(document.get("relay") or {}), "absent_s": None}
    document["monitoring"] = {"port": METRICS_PORT, "host": "0.0.0.0"}
    return document


def _deployment(deployment: Deployment, spec: GatewayPods) -> Manifest:
    chosen = deployment.selector(GATEWAY)
    volumes = [config_files(deployment.name(GATEWAY)), scratch("tmp", "/tmp", "256Mi"), *mounted(spec)]
    grace_s = (DrainSpec() if deployment.gateway is None else deployment.gateway.drain).grace_s
    container = {
        "name": "gateway",
        "image": spec.image,
        "args": ["gateway", f"--config={CONFIG_PATH}/{FILE}", "--host=0.0.0.0", f"--port={GATEWAY_PORT}"],
        "env": environment(spec, {"HOME": "/tmp"}, deployment.ray_token),
        "ports": [
            {"name": "http", "containerPort": GATEWAY_PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "resources": resources(spec),
        "startupProbe": {"tcpSocket": {"port": "metrics"}, "periodSeconds": 1, "failureThreshold": 120},
        "readinessProbe": http_probe("/health", "metrics", every_s=2, failures=2),
        "livenessProbe": {"tcpSocket": {"port": "metrics"}, "periodSeconds": 10, "failureThreshold": 3},
    }
    fields = {
        "serviceAccountName": deployment.name(GATEWAY),
        "automountServiceAccountToken": "kubernetes" in deployment.engine_place,
        "terminationGracePeriodSeconds": round(grace_s) + AFTER_DRAIN_S,
        **placement(spec),
        "topologySpreadConstraints": spread(chosen),
    }
    metadata = {"labels": deployment.labels(GATEWAY), "annotations": config_hash(_files(deployment))}
    content = {
        "spec": {
            "replicas": spec.replicas,
            "selector": {"matchLabels": chosen},
            "template": {"metadata": metadata, "spec": pod_spec(container, volumes, fields)},
        }
    }
    return deployment.manifest(
        GATEWAY,
        "Deployment",
        content,
        notes={
            f"{CONTAINER}/readinessProbe": (
                "Reports `draining` on SIGTERM, before the port closes. Healthy without a replica if "
                "requests wait for one (relay.absent_s: null)."
            ),
            f"{CONTAINER}/livenessProbe": (
                "Not /health: without a replica it is 503, which a restart does not fix."
            ),
        },
    )
