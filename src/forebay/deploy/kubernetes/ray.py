"""The engine as a RayService of KubeRay, without Serve proxies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from forebay.deploy.kubernetes.deployment import DASHBOARD_PORT, ENGINE, RAY, Deployment
from forebay.deploy.kubernetes.engine import claim_template, engine_environment, engine_pod
from forebay.deploy.kubernetes.manifest import Manifest
from forebay.deploy.kubernetes.pipeline import quantity
from forebay.deploy.kubernetes.pod_settings import EnginePods
from forebay.deploy.kubernetes.pods import (
    config_hash,
    container_security,
    environment,
    placement,
    pod_spec,
    resources,
    scratch,
)
from forebay.deploy.kubernetes.settings import RaySpec
from forebay.deploy.ray.config import RayFleetSpec, whole_config
from forebay.yaml_document import to_yaml

HEAD_CPU, HEAD_MEMORY = "2", "4Gi"
AGENT_PORT = 52365
NODE_HEALTH = "/api/healthz"
"""Reported by a node's agent without a token."""
HEAD_PORTS = {"gcs-server": 6379, "dashboard": DASHBOARD_PORT, "client": 10001, "serve": 8000}
OBJECT_STORE_BYTES = 128 << 20
IDLE_S = 60
GONE_S = 60
"""How long an old cluster may have requests after its last replica."""


def ray_manifests(deployment: Deployment) -> Iterator[Manifest]:
    ray, engine = deployment.settings.ray, deployment.settings.engine
    if ray is None or engine is None:
        return
    yield deployment.manifest(
        ENGINE,
        "ServiceAccount",
        {"automountServiceAccountToken": False},
        part=RAY,
        annotations=engine.service_account_annotations,
        notes={"automountServiceAccountToken": "Engines never call the API server."},
    )
    if engine.gpu is not None and engine.gpu.device_class is not None:
        yield claim_template(deployment, engine.gpu.device_class, engine.gpu.count)
    yield _heads(deployment)
    budget = {"maxUnavailable": 1, "selector": {"matchLabels": deployment.selector(ENGINE)}}
    yield deployment.manifest(
        ENGINE,
        "PodDisruptionBudget",
        {"spec": budget},
        part=RAY,
        notes={"spec/maxUnavailable": "Nodes are emptied one replica at a time."},
    )
    yield _service(deployment, ray, engine)


def _heads(deployment: Deployment) -> Manifest:
    content = {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": deployment.selector(RAY),
            "ports": [{"name": "dashboard", "port": DASHBOARD_PORT, "targetPort": "dashboard"}],
        }
    }
    why = (
        "Headless: every head. KubeRay's own Service means the old cluster until the new one has replaced "
        "it; routers and autoscaler need both meanwhile."
    )
    return deployment.manifest(
        RAY,
        "Service",
        content,
        notes={
            "spec/clusterIP": why,
            "spec/publishNotReadyAddresses": "Engines run on while their head misses a probe.",
        },
    )


def _service(deployment: Deployment, ray: RaySpec, engine: EnginePods) -> Manifest:
    serve = whole_config(ray_fleet(deployment, engine))
    spec = {
        "serveConfigV2": to_yaml(serve),
        "excludeHeadPodFromServeSvc": True,
        "rayClusterDeletionDelaySeconds": engine.drain_s + GONE_S,
        "upgradeStrategy": {
            "type": "NewClusterWithIncrementalUpgrade",
            "clusterUpgradeOptions": {
                "gatewayClassName": ray.gateway_class,
                "stepSizePercent": ray.step_percent,
                "intervalSeconds": ray.interval_s,
                "maxSurgePercent": ray.surge_percent,
            },
        },
        "rayClusterConfig": _cluster(deployment, ray, engine, serve["applications"][0]["args"]),
    }
    cluster = "spec/rayClusterConfig"
    worker = f"{cluster}/workerGroupSpecs/0"
    notes = {
        "spec/serveConfigV2": (
            "The fleet of `forebay deploy ray`: Serve starts and watches engines, and no request passes "
            "through it."
        ),
        "spec/rayClusterDeletionDelaySeconds": "An old cluster's last replicas finish their requests.",
        "spec/upgradeStrategy": (
            "A new cluster takes over from the old one step by step, by Serve's target_capacity."
        ),
        f"{cluster}/enableInTreeAutoscaling": (
            "KubeRay requires it for this strategy: a pod starts with each replica that Serve needs, and "
            "ends when it is idle."
        ),
        f"{cluster}/authOptions": (
            "KubeRay gives every node the token. Without a name of the Secret it would make one for each "
            "cluster, and nothing else would have it."
        ),
        f"{cluster}/headGroupSpec/rayStartParams": "No replica on the head: it must outlive them.",
        f"{worker}/minReplicas": "A new cluster begins without pods.",
        f"{worker}/template/metadata/annotations": (
            "A changed engine, or limit, is a new cluster: Serve would replace replicas before new ones run, "
            "and KubeRay changes no limit of a cluster."
        ),
        f"{worker}/rayStartParams": "One replica takes all of a pod; nothing goes through the object store.",
        f"{worker}/template/spec/containers/0/readinessProbe": (
            "KubeRay's own also checks Serve's proxy, and there is none."
        ),
    }
    return deployment.manifest(ENGINE, "RayService", {"spec": spec}, part=RAY, notes=notes)


def ray_fleet(deployment: Deployment, engine: EnginePods) -> RayFleetSpec:
    return RayFleetSpec(
        address=deployment.ray_dashboard,
        name=deployment.instance,
        model=engine.model,
        command=(
            *engine.command,
            "{model}",
            "--host={host}",
            "--port={port}",
            f"--served-model-name={deployment.served_model}",
            "--disable-uvicorn-access-log",
            "--enable-prompt-tokens-details",
        ),
        args=engine.args,
        replicas=_submitted(deployment, engine),
        cpu=float(_cpus(engine)),
        gpu=float(_gpus(engine)),
        startup_s=engine.startup_s,
        drain_s=engine.drain_s,
    )


def _submitted(deployment: Deployment, engine: EnginePods) -> int:
    """In an upgrade Serve starts a share of its config's number until the autoscaler sets one. A lower
    number than the maximum would stop engines at work."""
    scaling = deployment.settings.scaling
    return max(1, engine.replicas) if scaling is None else scaling.max


def _cluster(
    deployment: Deployment, ray: RaySpec, engine: EnginePods, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    most = _submitted(deployment, engine)
    store = {"object-store-memory": str(OBJECT_STORE_BYTES)}
    head = {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0", **store},
        "template": {"metadata": {"labels": deployment.selector(RAY)}, "spec": _head_pod(engine)},
    }
    worker = {
        "groupName": ENGINE,
        "replicas": engine.replicas,
        "minReplicas": 0,
        "maxReplicas": most,
        "rayStartParams": {"num-cpus": str(_cpus(engine)), "num-gpus": str(_gpus(engine)), **store},
        "template": {
            "metadata": {
                "labels": deployment.selector(ENGINE),
                "annotations": config_hash({"arguments": to_yaml(dict(arguments)), "most": str(most)}),
            },
            "spec": _worker_pod(deployment, engine),
        },
    }
    return {
        "rayVersion": ray.version,
        "authOptions": {"mode": "token", "secretName": ray.token_secret},
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {
            "version": "v2",
            "idleTimeoutSeconds": IDLE_S,
            "resources": {"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}},
            "securityContext": container_security(),
            "env": [{"name": "HOME", "value": "/tmp"}],
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        },
        "headGroupSpec": head,
        "workerGroupSpecs": [worker],
    }


def _cpus(engine: EnginePods) -> int:
    """Ray sets libraries' threads by it."""
    return max(1, math.floor(quantity(engine.cpu)))


def _gpus(engine: EnginePods) -> int:
    return 0 if engine.gpu is None else engine.gpu.count


def _own_environment() -> dict[str, str]:
    return {"HOME": "/tmp", "USER": "forebay", "RAY_USAGE_STATS_ENABLED": "0"}


def _head_pod(engine: EnginePods) -> dict[str, Any]:
    size = engine.model_copy(update={"cpu": HEAD_CPU, "memory": HEAD_MEMORY, "env": {}, "secrets": {}})
    container = {
        "name": "ray-head",
        "image": engine.image,
        "env": environment(size, _own_environment()),
        "ports": [{"name": name, "containerPort": port} for name, port in HEAD_PORTS.items()],
        "resources": resources(size),
        **_probes(),
    }
    # The autoscaler next to it calls the API server, with the account that KubeRay creates.
    head = size.model_copy(update={"node_selector": {}, "tolerations": ()})
    volumes = [scratch("tmp", "/tmp", "20Gi"), scratch("shm", "/dev/shm", "1Gi", memory=True)]
    return pod_spec(container, volumes, {"automountServiceAccountToken": True, **placement(head)})


def _worker_pod(deployment: Deployment, engine: EnginePods) -> dict[str, Any]:
    container = {
        "name": "ray-worker",
        "image": engine.image,
        "env": engine_environment(deployment, engine, _own_environment()),
        **_probes(),
    }
    return engine_pod(deployment, container, (), deployment.selector(ENGINE), grace_s=engine.drain_s)


def _probes() -> dict[str, Any]:
    alive = {"httpGet": {"path": NODE_HEALTH, "port": AGENT_PORT}, "timeoutSeconds": 5}
    return {
        "readinessProbe": {**alive, "periodSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**alive, "initialDelaySeconds": 30, "periodSeconds": 5, "failureThreshold": 120},
    }
