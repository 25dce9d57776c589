"""What Prometheus scrapes, and its alerts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from forebay.deploy.alerts import AlertScope, alert, pipeline_alerts
from forebay.deploy.kubernetes.deployment import (
    COMPONENT,
    ENGINE,
    EXTERNAL_METRIC,
    GATEWAY,
    IN_FLIGHT,
    INSTANCE,
    PENDING,
    PIPELINE,
    POOL,
    RECORDS,
    RESULTS,
    Deployment,
    gateway_load,
    of_pipeline,
    series_label,
)
from forebay.deploy.kubernetes.manifest import Manifest
from forebay.deploy.kubernetes.scaling import total_query
from forebay.pipeline.spec import PipelineSpec
from forebay.yaml_document import to_yaml

PART = "monitoring"
RULES_FILE = "forebay.rules.yaml"
EVERY = "10s"


def monitoring_manifests(deployment: Deployment) -> Iterator[Manifest]:
    wanted = deployment.settings.monitoring
    if wanted.pod_monitor:
        yield _pod_monitor(deployment)
    name = deployment.name("alerts")
    made = [*_recorded(deployment), *rules(deployment)]
    groups = {"groups": [{"name": deployment.instance, "rules": made}]}
    if wanted.rules == "prometheus_rule":
        yield deployment.manifest(PART, "PrometheusRule", {"spec": groups}, name=name)
    elif wanted.rules == "config_map":
        why = "A file for Prometheus' rule_files: mount it there, or render a PrometheusRule in its place."
        data = {RULES_FILE: to_yaml(groups)}
        yield deployment.manifest(PART, "ConfigMap", {"data": data}, name=name, notes={"data": why})


def _pod_monitor(deployment: Deployment) -> Manifest:
    endpoints: list[dict[str, Any]] = [{"port": "metrics", "interval": EVERY}]
    settings = deployment.settings
    components = [] if deployment.job is None else [PIPELINE]
    if settings.gateway is not None:
        components.append(GATEWAY)
    if settings.engine is not None and settings.ray is None:
        components.append(ENGINE)
        # The gateway has a port of this name too, without metrics.
        source = "__meta_kubernetes_pod_label_app_kubernetes_io_component"
        only = {"sourceLabels": [source], "regex": ENGINE, "action": "keep"}
        endpoints.append({"port": "http", "interval": EVERY, "relabelings": [only]})
    spec = {
        "selector": {
            "matchLabels": {INSTANCE: deployment.instance},
            "matchExpressions": [{"key": COMPONENT, "operator": "In", "values": components}],
        },
        "podTargetLabels": [INSTANCE, COMPONENT, POOL],
        "podMetricsEndpoints": endpoints,
    }
    return deployment.manifest(
        PART,
        "PodMonitor",
        {"spec": spec},
        name=deployment.instance,
        notes={"spec/podTargetLabels": "Alerts and autoscaler distinguish deployments by these."},
    )


def _recorded(deployment: Deployment) -> Iterator[dict[str, Any]]:
    """For a HorizontalPodAutoscaler: KEDA and the controller compute it themselves."""
    scaling = deployment.settings.scaling
    if scaling is not None and scaling.by == "hpa":
        yield {
            "record": EXTERNAL_METRIC,
            "expr": total_query(deployment, scaling),
            "labels": {series_label(INSTANCE): deployment.instance},
        }


def rules(deployment: Deployment) -> Iterator[dict[str, Any]]:
    if deployment.settings.gateway is not None:
        name = deployment.name(GATEWAY)
        yield alert(
            "ForebayGatewayNoMetrics",
            f"absent({gateway_load(deployment)})",
            "10m",
            f"Gateway {name} has reported no metrics for ten minutes: its load is unknown.",
            f"kubectl get pods -l {INSTANCE}={deployment.instance},{COMPONENT}={GATEWAY}",
        )
    if deployment.job is not None:
        yield from _pipeline_alerts(deployment, deployment.job.spec)


def _pipeline_alerts(deployment: Deployment, pipeline: PipelineSpec) -> Iterator[dict[str, Any]]:
    def of(metric: str) -> str:
        return of_pipeline(deployment, metric)

    name = deployment.instance
    yield alert(
        "ForebayNoMetrics",
        f"absent({of(RESULTS)}) and absent({of(RECORDS)})",
        "10m",
        f"Pipeline {name} has reported no metrics for ten minutes: is its job running?",
        f"kubectl get flinkdeployment {name}",
    )
    commits = f"{max(10, math.ceil(pipeline.checkpoint.interval_s / 30))}m"
    yield from pipeline_alerts(AlertScope(of, "", name, commits))
    if deployment.settings.engine is not None:
        full = pipeline.capacity * pipeline.parallelism
        more = "engine.replicas" if deployment.settings.scaling is None else "scaling.max"
        yield alert(
            "ForebayBehind",
            f"sum({of(IN_FLIGHT)}) + sum({of(PENDING)}) >= {full}",
            "15m",
            f"Pipeline {name} was full for 15 minutes: the engine is slower than the stream.",
            f"Raise {more}, or capacity if the replicas are not busy.",
        )
