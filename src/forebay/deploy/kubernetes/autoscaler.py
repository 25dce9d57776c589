"""The controller that scales replicas without KEDA or a metrics adapter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forebay.deploy.fields import SecretKey
from forebay.deploy.kubernetes.deployment import GATEWAY, PIPELINE, Deployment
from forebay.deploy.kubernetes.manifest import Manifest, manifest
from forebay.deploy.kubernetes.pods import (
    container_security,
    from_secrets,
    pod_security,
    scratch,
    with_volumes,
)
from forebay.deploy.kubernetes.rbac import Rule, role
from forebay.deploy.kubernetes.settings import ScalingSpec

AUTOSCALER = "autoscaler"
INTERVAL_S = 2


def autoscaler_manifests(deployment: Deployment, scaling: ScalingSpec) -> Iterator[Manifest]:
    name, labels = deployment.name(AUTOSCALER), deployment.labels(AUTOSCALER)
    yield manifest(
        AUTOSCALER, "v1", "ServiceAccount", name, {"automountServiceAccountToken": False}, labels=labels
    )
    why = (
        "It reads the replicas, patches their number, finds the pods with the metrics, and writes events. "
        "Its Leases decide which of two controllers scales."
    )
    yield from role(deployment, AUTOSCALER, _rules(deployment), why)
    yield _deployment(deployment, scaling)


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


def autoscaler_container(
    scaling: ScalingSpec,
    words: Sequence[str],
    mounts: list[dict[str, Any]],
    secrets: Mapping[str, SecretKey] | None = None,
) -> dict[str, Any]:
    """The container that runs `forebay autoscale` with `words` and the options of `scaling`."""
    return {
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
        "env": [{"name": "HOME", "value": "/tmp"}, *from_secrets(secrets or {})],
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }


def _words(selector: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in selector.items())


def _deployment(deployment: Deployment, scaling: ScalingSpec) -> Manifest:
    chosen = deployment.selector(AUTOSCALER)
    read = {} if deployment.job is None else {"pods": PIPELINE}
    if deployment.settings.gateway is not None:
        read["gateway-pods"] = GATEWAY
    volumes, mounts = with_volumes([scratch("tmp", "/tmp", "64Mi")])
    container = autoscaler_container(
        scaling,
        (
            "kubernetes",
            *(f"{pool.name}={pool.share.parts}" for pool in deployment.pools()),
            *(f"--{option}={_words(deployment.selector(part))}" for option, part in read.items()),
        ),
        mounts,
    )
    content = {
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": chosen},
            "template": {
                "metadata": {"labels": deployment.labels(AUTOSCALER)},
                "spec": {
                    "serviceAccountName": deployment.name(AUTOSCALER),
                    "automountServiceAccountToken": True,
                    "enableServiceLinks": False,
                    "securityContext": pod_security(),
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        }
    }
    return manifest(
        AUTOSCALER,
        "apps/v1",
        "Deployment",
        deployment.name(AUTOSCALER),
        content,
        labels=deployment.labels(AUTOSCALER),
        notes={
            ("spec", "strategy"): "One at a time: a second one would only wait for the first one's Lease."
        },
    )
