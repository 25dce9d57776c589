"""How the decision of how many replicas there are to be gets to the cluster: a ScaledObject of KEDA, a
HorizontalPodAutoscaler on the same metric, or a controller of our own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from forebay.autoscale.shares import Share
from forebay.deploy.kubernetes.autoscaler import autoscaler_manifests
from forebay.deploy.kubernetes.deployment import Deployment, Pool
from forebay.deploy.kubernetes.manifest import Manifest, Where, manifest
from forebay.deploy.kubernetes.metrics import (
    IN_FLIGHT,
    PENDING,
    RUNNING,
    WANTED,
    of_pipeline,
    series,
    series_label,
)
from forebay.deploy.kubernetes.names import INSTANCE
from forebay.deploy.kubernetes.ray_autoscaler import ray_autoscaler_manifests
from forebay.deploy.kubernetes.settings import ScalingSpec

PART = "scaling"
POLL_S = 5
FAILURES = 3
STEP_S = 15
BLURRED_FROM = 10
EXTERNAL_METRIC = "forebay_wanted_replicas"
"""What an adapter of external metrics is to call the wanted number of replicas, for a plain HPA."""


def scaling_manifests(deployment: Deployment) -> Iterator[Manifest]:
    """One autoscaler for each pool, or a controller for all."""
    scaling = deployment.settings.scaling
    if scaling is None:
        return
    if scaling.by == "controller":
        made = autoscaler_manifests if deployment.settings.ray is None else ray_autoscaler_manifests
        yield from made(deployment, scaling)
        return
    for pool in deployment.pools():
        if scaling.by == "keda":
            yield _scaled_object(deployment, pool, scaling)
        else:
            yield _autoscaler(deployment, pool, scaling)


def _behavior(pool: Pool, scaling: ScalingSpec, *, parts: int = 1) -> dict[str, Any]:
    """Up at once, as far as is wanted; down after a while, and then one replica a time. The number that is
    compared is of whole replicas, or of the `parts` of one."""
    # A tenth more or less counts as equal by default: from ten replicas on, one more would not come.
    exact = {"tolerance": "0"} if pool.limits.most * parts >= BLURRED_FROM else {}
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "policies": [{"type": "Pods", "value": pool.limits.most, "periodSeconds": STEP_S}],
            **exact,
        },
        "scaleDown": {
            "stabilizationWindowSeconds": scaling.settle_s,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": STEP_S}],
            **exact,
        },
    }


def formula(scaling: ScalingSpec) -> str:
    """What KEDA computes; what it could not ask for is null. `wanted` counts replicas that boot already. The
    load does not: those are taken off it, but never so many that a replica would be taken away meanwhile.
    Where not even the load is known, the replicas stay as they are. All numbers are floats, as KEDA's own
    are: what divides whole numbers without a remainder would take -1/8 for 0."""
    return (
        "let there = replicas ?? 1.0;\n"
        f"let load = (held ?? -1.0) / {scaling.requests_per_replica};\n"
        "let unready = there - (ready ?? there);\n"
        "wanted ?? (load < 0 ? there : load <= there ? load : max(load - unready, there))\n"
    )


def wanted_query(deployment: Deployment, share: Share) -> str:
    """Prometheus' query for the pool's part of the wanted replicas, rounded up."""
    wanted = f"max({of_pipeline(deployment, WANTED)})"
    return wanted if share.whole else f"ceil({wanted} * {share.parts} / {share.of})"


def held_query(deployment: Deployment, share: Share) -> str:
    """The query for the pool's part of the requests that the pipeline holds."""
    held = f"sum({of_pipeline(deployment, IN_FLIGHT)}) + sum({of_pipeline(deployment, PENDING)})"
    return held if share.whole else f"({held}) * {share.parts} / {share.of}"


def _scaled_object(deployment: Deployment, pool: Pool, scaling: ScalingSpec) -> Manifest:
    spec: dict[str, Any] = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": pool.name},
        "pollingInterval": POLL_S,
        "cooldownPeriod": scaling.settle_s,
        "minReplicaCount": pool.limits.least,
        "maxReplicaCount": pool.limits.most,
        "fallback": {
            "failureThreshold": FAILURES,
            "replicas": max(pool.limits.least, 1),
            "behavior": "scalingModifiers",
        },
        "advanced": {
            "horizontalPodAutoscalerConfig": {"behavior": _behavior(pool, scaling)},
            "scalingModifiers": {
                "formula": formula(scaling),
                "target": "1",
                "activationTarget": "0",
                "metricType": "AverageValue",
            },
        },
        "triggers": [
            _trigger(scaling, "wanted", wanted_query(deployment, pool.share)),
            _trigger(scaling, "held", held_query(deployment, pool.share)),
            _trigger(scaling, "ready", f"count({series(RUNNING, pool.selector)}) or vector(0)"),
            _pods(pool),
        ],
    }
    notes: dict[Where, str] = {
        ("spec", "cooldownPeriod"): "Only for the step from one replica to none.",
        (
            "spec",
            "fallback",
            "behavior",
        ): "What cannot be asked for is null in the formula, which then keeps the "
        "replicas that are there: metrics that stop take none away from the work in flight.",
        (
            "spec",
            "advanced",
            "scalingModifiers",
            "formula",
        ): "The wanted replicas as they are. While they are not "
        "known: requests held, in replicas, less the replicas that still load their model.",
        ("spec", "advanced", "scalingModifiers", "target"): "The formula counts replicas.",
        (
            "spec",
            "triggers",
        ): "The formula gets the plain values: KEDA ignores the thresholds in it, and wants "
        "them all the same. A series that is missing is null, not 0."
        + ("" if pool.share.whole else f" Of what is wanted and held, this pool has {pool.share} parts."),
    }
    if scaling.min == 0:
        notes["spec", "minReplicaCount"] = (
            "The HPA that KEDA makes goes down to 1; KEDA takes the last one away by itself."
        )
    return manifest(
        PART, "keda.sh/v1alpha1", "ScaledObject", pool.name, {"spec": spec}, labels=pool.labels, notes=notes
    )


def _trigger(scaling: ScalingSpec, name: str, query: str) -> dict[str, Any]:
    return {
        "type": "prometheus",
        "name": name,
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": str(scaling.prometheus),
            "query": query,
            "threshold": "1",
            "ignoreNullValues": "false",
        },
    }


def _pods(pool: Pool) -> dict[str, Any]:
    """The pods that there are, by the API server itself: known also where Prometheus is away."""
    selector = ",".join(f"{key}={value}" for key, value in pool.selector.items())
    return {
        "type": "kubernetes-workload",
        "name": "replicas",
        "metricType": "AverageValue",
        "metadata": {"podSelector": selector, "value": "1"},
    }


def _autoscaler(deployment: Deployment, pool: Pool, scaling: ScalingSpec) -> Manifest:
    chosen = {"matchLabels": {series_label(INSTANCE): deployment.instance}}
    share = pool.share
    # Rounded up: of 7 wanted, 3 of 7 parts are 3 replicas and no fourth.
    thousandths = -(-1000 * share.of // share.parts)
    average = f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)
    metric = {
        "type": "External",
        "external": {
            "metric": {"name": EXTERNAL_METRIC, "selector": chosen},
            "target": {"type": "AverageValue", "averageValue": average},
        },
    }
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": pool.name},
        "minReplicas": pool.limits.least,
        "maxReplicas": pool.limits.most,
        "behavior": _behavior(pool, scaling, parts=share.of // math.gcd(share.of, share.parts)),
        "metrics": [metric],
    }
    return manifest(
        PART,
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        pool.name,
        {"spec": spec},
        labels=pool.labels,
        notes={
            (
                "spec",
                "metrics",
            ): f"An adapter has to serve {WANTED} by this name. A value of n with a target of "
            "1 for each replica is n replicas"
            + ("." if share.whole else f"; with this target, {share} parts of them, rounded up.")
        },
    )
