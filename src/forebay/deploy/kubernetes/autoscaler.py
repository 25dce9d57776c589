"""The controller that scales Deployments, or a fleet on Ray, without KEDA or a metrics adapter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forebay.deploy.kubernetes.deployment import (
    FLINK_METRICS_PORT,
    GATEWAY,
    METRICS_PORT,
    PIPELINE,
    Deployment,
)
from forebay.deploy.kubernetes.manifest import Manifest
from forebay.deploy.kubernetes.pods import (
    CONFIG_PATH,
    Rule,
    config_files,
    config_hash,
    from_secrets,
    pod_spec,
    role,
    scratch,
)
from forebay.deploy.kubernetes.settings import ReplicaScaling
from forebay.yaml_document import to_yaml

AUTOSCALER = "autoscaler"
INTERVAL_S = 2
FILE = "fleet.yaml"


def autoscaler_manifests(deployment: Deployment, scaling: ReplicaScaling) -> Iterator[Manifest]:
    yield deployment.manifest(AUTOSCALER, "ServiceAccount", {"automountServiceAccountToken": False})
    why = (
        "It reads the replicas, patches their number, finds the pods with the metrics, and writes events. "
        "Its Leases decide which of two controllers scales."
    )
    yield from role(deployment, AUTOSCALER, _rules(deployment), why)
    read = {} if deployment.job is None else {"pods": PIPELINE}
    if deployment.settings.gateway is not None:
        read["gateway-pods"] = GATEWAY
    words = (
        "kubernetes",
        *(f"{pool.name}={pool.share.parts}" for pool in deployment.pools()),
        *(f"--{option}={_words(deployment.selector(part))}" for option, part in read.items()),
    )
    account = {"serviceAccountName": deployment.name(AUTOSCALER), "automountServiceAccountToken": True}
    why = "One at a time: a second one would only wait for the first one's Lease."
    yield _controller(deployment, scaling, words, account, why=why)


def ray_autoscaler_manifests(deployment: Deployment, scaling: ReplicaScaling) -> Iterator[Manifest]:
    fleet = {"address": deployment.ray_dashboard, "name": deployment.instance}
    engine = deployment.settings.engine
    files = {FILE: to_yaml({**fleet, "model": None if engine is None else engine.model})}
    yield deployment.manifest(AUTOSCALER, "ConfigMap", {"data": files})
    words = ["ray", f"{CONFIG_PATH}/{FILE}"]
    read = [] if deployment.job is None else [("--metrics", PIPELINE, FLINK_METRICS_PORT)]
    if deployment.settings.gateway is not None:
        read.append(("--gateway-metrics", GATEWAY, METRICS_PORT))
    for option, part, port in read:
        service = f"{deployment.name(AUTOSCALER)}-{part}"
        yield _service(deployment, service, part, port)
        words.append(f"{option}=http://{service}:{port}/metrics")
    why = "One at a time: Serve scales unconditionally, and two may differ."
    yield _controller(
        deployment, scaling, words, {"automountServiceAccountToken": False}, why=why, files=files
    )


def _rules(deployment: Deployment) -> list[Rule]:
    names = [pool.name for pool in deployment.pools()]
    return [
        {"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": names, "verbs": ["get"]},
        {
            "apiGroups": ["apps"],
            "resources": ["deployments/scale"],
            "resourceNames": names,
            "verbs": ["patch"],
        },
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [f"{name}-autoscale" for name in names],
            "verbs": ["get", "update"],
        },
        # An object's name cannot restrict who creates it.
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]


def _service(deployment: Deployment, name: str, part: str, port: int) -> Manifest:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": deployment.selector(part),
        "ports": [{"name": "metrics", "port": port, "targetPort": "metrics"}],
    }
    return deployment.manifest(
        AUTOSCALER,
        "Service",
        {"spec": spec},
        name=name,
        notes={
            "spec/clusterIP": f"Headless: every pod of the {part} reports a part.",
            "spec/publishNotReadyAddresses": "While a pod cannot be read, no replica is removed.",
        },
    )


def _words(selector: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in selector.items())


def _controller(
    deployment: Deployment,
    scaling: ReplicaScaling,
    words: Sequence[str],
    account: Mapping[str, Any],
    *,
    why: str,
    files: Mapping[str, str] | None = None,
) -> Manifest:
    volumes = [config_files(deployment.name(AUTOSCALER))] if files else []
    container = {
        "name": AUTOSCALER,
        "image": scaling.image,
        "args": [
            "autoscale",
            *words,
            f"--min={scaling.min}",
            f"--max={scaling.max}",
            f"--requests-per-replica={scaling.requests_per_replica}",
            f"--settle-s={scaling.settle_s}",
            f"--interval-s={INTERVAL_S}",
        ],
        "env": [{"name": "HOME", "value": "/tmp"}, *from_secrets(deployment.ray_token)],
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}},
    }
    labels = {"labels": deployment.labels(AUTOSCALER)}
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": deployment.selector(AUTOSCALER)},
        "template": {
            "metadata": {**labels, "annotations": config_hash(files)} if files else labels,
            "spec": pod_spec(container, [*volumes, scratch("tmp", "/tmp", "64Mi")], account),
        },
    }
    return deployment.manifest(AUTOSCALER, "Deployment", {"spec": spec}, notes={"spec/strategy": why})
