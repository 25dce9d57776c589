"""NetworkPolicies: who may call whom.

Pods of pipeline and gateway may call the ports of their addresses on any host: brokers and stores may be
anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from yarl import URL

from forebay.deploy.kubernetes.autoscaler import AUTOSCALER
from forebay.deploy.kubernetes.deployment import (
    DASHBOARD_PORT,
    ENGINE,
    ENGINE_PORT,
    FLINK_METRICS_PORT,
    GATEWAY,
    GATEWAY_PORT,
    METRICS_PORT,
    PIPELINE,
    RAY,
    Deployment,
    Job,
)
from forebay.deploy.kubernetes.manifest import Manifest
from forebay.deploy.kubernetes.pod_settings import EnginePods, GatewayPods, PipelinePods
from forebay.deploy.kubernetes.ray import ray_fleet
from forebay.deploy.kubernetes.settings import RaySpec
from forebay.fleet.cache_subscriber import cache_endpoint

NAMESPACE = "kubernetes.io/metadata.name"
FLINK_REST_PORT = 8081
Rule = dict[str, Any]


def network_manifests(deployment: Deployment) -> Iterator[Manifest]:
    settings = deployment.settings
    scrape = [_namespace(settings.monitoring.namespace)]
    own = _pods(deployment, PIPELINE)
    called = [_pods(deployment, ENGINE)] if settings.engine is not None else []
    if settings.ray is not None:
        called.append(_pods(deployment, RAY))
    callers = [] if deployment.job is None else [own]
    readers = list(scrape)
    if settings.scaling is not None and settings.scaling.by == "controller":
        readers.append(_pods(deployment, AUTOSCALER))
        metrics = [] if deployment.job is None else [_to([own], FLINK_METRICS_PORT)]
        if settings.gateway is not None:
            metrics.append(_to([_pods(deployment, GATEWAY)], METRICS_PORT))
        if settings.ray is None:
            egress = [*metrics, API_SERVER]
            why = "The metrics that it reads, and the API server, which has no labels."
        else:
            egress = [NAMES, *metrics, _to([_pods(deployment, RAY)], DASHBOARD_PORT)]
            why = "Names, the metrics that it reads, and the clusters' dashboards."
        yield _policy(deployment, AUTOSCALER, [], egress=egress, notes={"spec/egress": why})
    if deployment.job is not None:
        yield _policy(
            deployment,
            PIPELINE,
            [
                {"from": [own]},
                _from([_namespace(settings.flink_operator.namespace)], FLINK_REST_PORT),
                _from(readers, FLINK_METRICS_PORT),
            ],
            egress=pipeline_egress(deployment, deployment.job, own, called),
            notes={
                "spec/ingress": (
                    "Flink's processes call each other at many ports; the operator calls the job's REST "
                    "service."
                ),
                "spec/egress": (
                    "Names, its own pods, replicas, the API server, and the ports of brokers, stores and "
                    "other addresses in its settings; pipeline.egress_ports opens more."
                ),
            },
        )
    if settings.gateway is not None:
        callers.append(_pods(deployment, GATEWAY))
    if settings.engine is not None and settings.ray is None:
        if settings.inference_pool is not None:
            callers = [{"namespaceSelector": {}}]
        replicas = [_pods(deployment, ENGINE)] if deployment.apart else []
        caches = _cache_ports(deployment)
        other = "the other replicas (KV caches, at ports that NIXL chooses), " if replicas else ""
        yield _policy(
            deployment,
            ENGINE,
            [
                _from([*callers, *scrape], ENGINE_PORT),
                *([{"from": callers, "ports": caches}] if caches else []),
                *({"from": [each]} for each in replicas),
            ],
            egress=[*({"to": [each]} for each in replicas), *engine_egress(settings.engine)],
            notes={"spec/egress": f"Names, {other}models from the hub by HTTPS; nothing else."},
        )
    if settings.engine is not None and settings.ray is not None:
        yield from _ray_policies(deployment, settings.ray, settings.engine, callers)
    if settings.gateway is not None:
        clients: list[Rule] = [{"podSelector": {}}, *map(_namespace, settings.gateway.from_namespaces)]
        yield _policy(
            deployment,
            GATEWAY,
            [_from(clients, GATEWAY_PORT), _from(readers, METRICS_PORT)],
            egress=gateway_egress(deployment, settings.gateway, called),
            notes={"spec/egress": "Names, replicas, the API server; gateway.egress_ports opens more."},
        )


def _ray_policies(
    deployment: Deployment, ray: RaySpec, engine: EnginePods, routers: list[Rule]
) -> Iterator[Manifest]:
    """Dashboards run programs for any token holder, and engines do not authenticate."""
    settings = deployment.settings
    nodes = [_pods(deployment, ENGINE), _pods(deployment, RAY)]
    callers = [*routers, _namespace(ray.operator_namespace)]
    if settings.scaling is not None:
        callers.append(_pods(deployment, AUTOSCALER))
    fleet = ray_fleet(deployment, engine)
    ports = {"protocol": "TCP", "port": fleet.first_port, "endPort": fleet.first_port + fleet.ports - 1}
    yield _policy(
        deployment,
        RAY,
        [{"from": nodes}, _from(callers, DASHBOARD_PORT)],
        egress=[{"to": nodes}, *engine_egress(engine), API_SERVER],
        notes={
            "spec/ingress": (
                "Nodes call each other at many ports; the dashboard runs programs for those with the token."
            )
        },
    )
    yield _policy(
        deployment,
        ENGINE,
        [{"from": nodes}, {"from": routers, "ports": [ports, *_cache_ports(deployment)]}],
        egress=[{"to": nodes}, *engine_egress(engine)],
        notes={"spec/egress": "The cluster's nodes, names, and models from the hub by HTTPS."},
    )


def _pods(deployment: Deployment, component: str) -> Rule:
    return {"podSelector": {"matchLabels": deployment.selector(component)}}


def _namespace(name: str) -> Rule:
    return {"namespaceSelector": {"matchLabels": {NAMESPACE: name}}}


def _to(peers: list[Rule], port: int) -> Rule:
    return {"to": peers, "ports": [{"protocol": "TCP", "port": port}]}


def _from(peers: list[Rule], port: int) -> Rule:
    return {"from": peers, "ports": [{"protocol": "TCP", "port": port}]}


def _cache_ports(deployment: Deployment) -> list[Rule]:
    forms = {
        form
        for form in (
            deployment.job and deployment.job.spec.engine.kv_events,
            deployment.gateway and deployment.gateway.engine.kv_events,
        )
        if form
    }
    addresses = (cache_endpoint(form, f"http://replica:{ENGINE_PORT}") for form in sorted(forms))
    return [{"protocol": "TCP", "port": URL(address).port} for address in addresses]


def _policy(
    deployment: Deployment,
    component: str,
    ingress: list[Rule],
    *,
    egress: list[Rule],
    notes: dict[str, str] | None = None,
) -> Manifest:
    spec: dict[str, Any] = {
        "podSelector": {"matchLabels": deployment.selector(component)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return deployment.manifest(component, "NetworkPolicy", {"spec": spec}, notes=notes)


API_SERVER_PORTS = (443, 6443, 8443, 16443)
API_SERVER: Rule = {"ports": [{"protocol": "TCP", "port": port} for port in API_SERVER_PORTS]}
NAME_PORTS = (53, 5353)
"""OpenShift's DNS pods use the second."""
NAMES: Rule = {
    "ports": [{"protocol": protocol, "port": port} for port in NAME_PORTS for protocol in ("UDP", "TCP")]
}
MAX_PORT = 65535
ANY_POD: Rule = {"to": [{"namespaceSelector": {}}]}
PORTS = {"http": 80, "ws": 80, "hdfs": 8020, "file": 0}
"""Of schemes; others are stores by HTTPS."""
HTTPS = 443
ADDRESS = re.compile(r"([a-z][a-z0-9+]*)://(?:[^/?#@]*@)?(?:\[[^\]]*\]|[^/?#:]*)(?::([0-9]{1,5}))?")
SERVERS = re.compile(r"[\w.-]+:[0-9]{1,5}(?: *, *[\w.-]+:[0-9]{1,5})*")
CALLING = ("source", "sink", "dead_letters", "assignments", "engine", "checkpoint", "journal")


def pipeline_egress(deployment: Deployment, job: Job, own: Rule, replicas: list[Rule]) -> list[Rule]:
    spec = job.spec.model_dump(mode="json", serialize_as_any=True, include=set(CALLING))
    # A model's name such as `gpt-oss:20` looks like an address.
    spec["engine"].pop("model", None)
    anywhere = deployment.settings.inference_pool is not None or (
        deployment.settings.engine is None
        and (job.spec.engine.kubernetes is not None or job.spec.engine.ray is not None)
    )
    return [
        NAMES,
        {"to": [own, *replicas]},
        *([ANY_POD] if anywhere else []),
        _ports(job.pods, [spec, job.pods.state], API_SERVER_PORTS),
    ]


def gateway_egress(deployment: Deployment, pods: GatewayPods, replicas: list[Rule]) -> list[Rule]:
    asks = "kubernetes" in deployment.engine_place
    ports = _ports(pods, [], API_SERVER_PORTS if asks else ())
    return [NAMES, {"to": replicas}, *([ports] if ports["ports"] else [])]


def engine_egress(engine: EnginePods) -> list[Rule]:
    ports = _ports(engine, [list(engine.args)], (HTTPS,) if engine.egress else ())
    return [NAMES, *([ports] if ports["ports"] else [])]


def _ports(pods: PipelinePods | GatewayPods | EnginePods, values: list[Any], more: Iterable[int]) -> Rule:
    found = {*more, *pods.egress_ports, *ports_in([*values, dict(pods.env)])}
    ports = (port for port in sorted(found) if 0 < port <= MAX_PORT)
    return {"ports": [{"protocol": "TCP", "port": port} for port in ports]}


def ports_in(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from ports_in(item)
    elif isinstance(value, str):
        if url := ADDRESS.match(value):
            yield int(url[2] or PORTS.get(url[1], HTTPS))
        elif SERVERS.fullmatch(value):
            yield from (int(server.rpartition(":")[2]) for server in value.split(","))
