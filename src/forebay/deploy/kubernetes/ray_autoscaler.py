"""The controller that scales a fleet on Ray: `forebay autoscale ray`."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.deploy.kubernetes.autoscaler import AUTOSCALER, autoscaler_container
from forebay.deploy.kubernetes.deployment import (
    FLINK_METRICS_PORT,
    GATEWAY,
    METRICS_PORT,
    PIPELINE,
    Deployment,
)
from forebay.deploy.kubernetes.manifest import Manifest, manifest
from forebay.deploy.kubernetes.pods import (
    CONFIG_PATH,
    config_files,
    config_hash,
    pod_security,
    scratch,
    with_volumes,
)
from forebay.deploy.kubernetes.settings import ScalingSpec
from forebay.yaml_document import to_yaml

FILE = "fleet.yaml"


def ray_autoscaler_manifests(deployment: Deployment, scaling: ScalingSpec) -> Iterator[Manifest]:
    name, labels = deployment.name(AUTOSCALER), deployment.labels(AUTOSCALER)
    data = _files(deployment)
    yield manifest(AUTOSCALER, "v1", "ConfigMap", name, {"data": data}, labels=labels)
    for service, part, port in _read(deployment):
        yield _service(deployment, service, part, port)
    yield _deployment(deployment, scaling)


def _read(deployment: Deployment) -> Iterator[tuple[str, str, int]]:
    if deployment.job is not None:
        yield f"{deployment.name(AUTOSCALER)}-{PIPELINE}", PIPELINE, FLINK_METRICS_PORT
    if deployment.settings.gateway is not None:
        yield f"{deployment.name(AUTOSCALER)}-{GATEWAY}", GATEWAY, METRICS_PORT


def _service(deployment: Deployment, name: str, part: str, port: int) -> Manifest:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": deployment.selector(part),
        "ports": [{"name": "metrics", "port": port, "targetPort": "metrics"}],
    }
    return manifest(
        AUTOSCALER,
        "v1",
        "Service",
        name,
        {"spec": spec},
        labels=deployment.labels(AUTOSCALER),
        notes={
            ("spec", "clusterIP"): f"Headless: every pod of the {part} reports a part.",
            ("spec", "publishNotReadyAddresses"): "While a pod cannot be read, no replica is removed.",
        },
    )


def _files(deployment: Deployment) -> dict[str, str]:
    engine = deployment.settings.engine
    fleet = {
        "address": deployment.ray_dashboard,
        "name": deployment.instance,
        "model": None if engine is None else engine.model,
    }
    return {FILE: to_yaml(fleet)}


def _deployment(deployment: Deployment, scaling: ScalingSpec) -> Manifest:
    name, chosen = deployment.name(AUTOSCALER), deployment.selector(AUTOSCALER)
    volumes, mounts = with_volumes([config_files(name), scratch("tmp", "/tmp", "64Mi")])
    options = {PIPELINE: "--metrics", GATEWAY: "--gateway-metrics"}
    metrics = [
        f"{options[part]}=http://{service}:{port}/metrics" for service, part, port in _read(deployment)
    ]
    container = autoscaler_container(
        scaling, ("ray", f"{CONFIG_PATH}/{FILE}", *metrics), mounts, deployment.ray_token
    )
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": volumes,
    }
    metadata = {"labels": deployment.labels(AUTOSCALER), "annotations": config_hash(_files(deployment))}
    content = {
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": chosen},
            "template": {"metadata": metadata, "spec": pod},
        }
    }
    return manifest(
        AUTOSCALER,
        "apps/v1",
        "Deployment",
        name,
        content,
        labels=deployment.labels(AUTOSCALER),
        notes={
            (
                "spec",
                "strategy",
            ): "One at a time: Serve scales unconditionally, and two may differ."
        },
    )
