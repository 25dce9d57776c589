"""Scales the replicas by KEDA, a HorizontalPodAutoscaler, or Forebay's controller.

The loads of pipeline and gateway add up, because both use the same replicas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from forebay.deploy.kubernetes.autoscaler import autoscaler_manifests, ray_autoscaler_manifests
from forebay.deploy.kubernetes.deployment import (
    EXTERNAL_METRIC,
    IN_FLIGHT,
    INSTANCE,
    PENDING,
    RUNNING,
    WANTED,
    Deployment,
    Pool,
    gateway_load,
    of_pipeline,
    series,
    series_label,
)
from forebay.deploy.kubernetes.manifest import Manifest, manifest
from forebay.deploy.kubernetes.settings import ReplicaScaling
from forebay.fleet.autoscale.settings import Share

PART = "scaling"
POLL_S = 5
FAILURES = 3
STEP_S = 15
BLURRED_FROM = 10


def scaling_manifests(deployment: Deployment) -> Iterator[Manifest]:
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


def _behavior(pool: Pool, scaling: ReplicaScaling, *, parts: int = 1) -> dict[str, Any]:
    # By default a tenth more or less counts as equal: from ten replicas on, one more would not start.
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


def formula(deployment: Deployment, scaling: ReplicaScaling) -> str:
    """Booting replicas never cause a removal. All numbers are floats: integer division would turn -1/8 into
    0."""
    requests = f"{scaling.requests_per_replica}.0"
    lines = ["let there = replicas ?? 1.0;", "let unready = max(there - (ready ?? there), 0.0);"]
    parts, least = [], ["damped"]
    if deployment.job is not None:
        lines.append(f"let pipelines = wanted ?? ((held ?? -1.0) / {requests});")
        parts.append("pipelines")
        least.append("(wanted ?? 0.0)")
    if deployment.settings.gateway is not None:
        lines.append(f"let gateways = (gateway ?? -1.0) / {requests};")
        parts.append("gateways")
    load = " + ".join(f"max({part}, 0.0)" for part in parts)
    lines += [
        f"let load = {load};",
        "let damped = load <= there ? load : max(load - unready, there);",
        f"let lowest = {f'min({parts[0]}, {parts[1]})' if len(parts) > 1 else parts[0]};",
        f"max({', '.join(least)}, (lowest < 0 ? there : 0.0))",
    ]
    return "\n".join(lines) + "\n"


def wanted_query(deployment: Deployment, share: Share) -> str:
    return _part(f"max({of_pipeline(deployment, WANTED)})", share)


def held_query(deployment: Deployment, share: Share) -> str:
    return _part(_held(deployment), share)


def gateway_query(deployment: Deployment, share: Share) -> str:
    return _part(f"sum({gateway_load(deployment)})", share)


def total_query(deployment: Deployment, scaling: ReplicaScaling) -> str:
    requests, parts = scaling.requests_per_replica, []
    if deployment.job is not None:
        wanted, held = f"max({of_pipeline(deployment, WANTED)})", _held(deployment)
        parts.append(f"({wanted} or ({held}) / {requests})")
    if deployment.settings.gateway is not None:
        parts.append(f"sum({gateway_load(deployment)}) / {requests}")
    return " + ".join(parts)


def _held(deployment: Deployment) -> str:
    return f"sum({of_pipeline(deployment, IN_FLIGHT)}) + sum({of_pipeline(deployment, PENDING)})"


def _part(query: str, share: Share) -> str:
    return query if share.whole else f"({query}) * {share.parts} / {share.of}"


def _triggers(deployment: Deployment, pool: Pool, scaling: ReplicaScaling) -> Iterator[dict[str, Any]]:
    if deployment.job is not None:
        yield _trigger(scaling, "wanted", wanted_query(deployment, pool.share))
        yield _trigger(scaling, "held", held_query(deployment, pool.share))
    if deployment.settings.gateway is not None:
        yield _trigger(scaling, "gateway", gateway_query(deployment, pool.share))
    yield _trigger(scaling, "ready", f"count({series(RUNNING, pool.selector)}) or vector(0)")
    yield _pods(pool)


def _parts(pool: Pool) -> int:
    return pool.share.of // math.gcd(pool.share.of, pool.share.parts)


def _scaled_object(deployment: Deployment, pool: Pool, scaling: ReplicaScaling) -> Manifest:
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
            "horizontalPodAutoscalerConfig": {"behavior": _behavior(pool, scaling, parts=_parts(pool))},
            "scalingModifiers": {
                "formula": formula(deployment, scaling),
                "target": "1",
                "activationTarget": "0",
                "metricType": "AverageValue",
            },
        },
        "triggers": list(_triggers(deployment, pool, scaling)),
    }
    notes = {
        "spec/cooldownPeriod": "Only for the step from one replica to none.",
        "spec/fallback/behavior": (
            "A metric that cannot be read is null in the formula, which then keeps the existing replicas: "
            "missing metrics never remove one."
        ),
        "spec/advanced/scalingModifiers/formula": (
            "Loads add up: the replicas that the pipeline needs (or the requests that it holds, in "
            "replicas), and the requests of the gateway, in replicas. Those that still load their model are "
            "subtracted from requests, not from wanted replicas. While a load is not known, no replica is "
            "taken away."
        ),
        "spec/advanced/scalingModifiers/target": "The formula counts replicas.",
        "spec/triggers": "The formula gets the plain values: KEDA ignores the thresholds in it, and requires "
        "them all the same. A series that is missing is null, not 0."
        + ("" if pool.share.whole else f" Of every load, this pool has {pool.share} parts."),
    }
    if scaling.min == 0:
        notes["spec/minReplicaCount"] = (
            "The HPA that KEDA makes goes down to 1; KEDA itself removes the last one."
        )
    return manifest(PART, "ScaledObject", pool.name, {"spec": spec}, labels=pool.labels, notes=notes)


def _trigger(scaling: ReplicaScaling, name: str, query: str) -> dict[str, Any]:
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
    selector = ",".join(f"{key}={value}" for key, value in pool.selector.items())
    return {
        "type": "kubernetes-workload",
        "name": "replicas",
        "metricType": "AverageValue",
        "metadata": {"podSelector": selector, "value": "1"},
    }


def _autoscaler(deployment: Deployment, pool: Pool, scaling: ReplicaScaling) -> Manifest:
    chosen = {"matchLabels": {series_label(INSTANCE): deployment.instance}}
    share = pool.share
    # Rounded up: of 7 wanted, 3 of 7 parts are exactly 3 replicas.
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
        "behavior": _behavior(pool, scaling, parts=_parts(pool)),
        "metrics": [metric],
    }
    return manifest(
        PART,
        "HorizontalPodAutoscaler",
        pool.name,
        {"spec": spec},
        labels=pool.labels,
        notes={
            "spec/metrics": f"The alert rules record {EXTERNAL_METRIC}, and an adapter has to serve it by "
            f"this name: {total_query(deployment, scaling)}. A value of n with a target of 1 for each "
            "replica is n replicas"
            + ("." if share.whole else f"; with this target, {share} parts of them, rounded up.")
        },
    )
