"""The engine as a RayService of KubeRay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forebay.config.plan import to_yaml
from forebay.deploy.kubernetes.deployment import ENGINE, RAY_PORT, Deployment
from forebay.deploy.kubernetes.manifest import Manifest, manifest
from forebay.deploy.kubernetes.pods import (
    container_security,
    environment,
    mounted,
    placement,
    pod_security,
    resources,
    scratch,
    with_volumes,
)
from forebay.deploy.kubernetes.settings import EnginePods, RaySpec
from forebay.deploy.ray.config import serve_application

PART = "ray"
HEAD_CPU, HEAD_MEMORY = "2", "4Gi"


def ray_manifests(deployment: Deployment) -> Iterator[Manifest]:
    """The service, where one is wanted."""
    ray, engine = deployment.settings.ray, deployment.settings.engine
    if ray is None or engine is None:
        return
    worker = {
        "groupName": "engine",
        "replicas": engine.replicas,
        "minReplicas": engine.replicas,
        "maxReplicas": engine.replicas,
        "rayStartParams": {},
        "template": {"spec": _pod(ray, engine, "ray-worker", worker=True)},
    }
    head = {
        # No actors of the application on the head: it may not die with one of them.
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
        "template": {"spec": _pod(ray, engine, "ray-head", worker=False)},
    }
    spec = {
        "serveConfigV2": to_yaml(serve_config(deployment, ray)),
        "upgradeStrategy": {
            "type": "NewClusterWithIncrementalUpgrade",
            "clusterUpgradeOptions": {
                "gatewayClassName": ray.gateway_class,
                "stepSizePercent": ray.step_percent,
                "intervalSeconds": ray.interval_s,
                "maxSurgePercent": 100,
            },
        },
        "rayClusterConfig": {
            "rayVersion": ray.version,
            "headGroupSpec": head,
            "workerGroupSpecs": [worker],
        },
    }
    yield manifest(
        PART,
        "ray.io/v1",
        "RayService",
        deployment.name(ENGINE),
        {"spec": spec},
        labels=deployment.labels(ENGINE),
        notes={
            ("spec", "upgradeStrategy"): "A new cluster beside the old one; traffic goes over step by step.",
            (
                "spec",
                "rayClusterConfig",
                "headGroupSpec",
                "rayStartParams",
            ): "No replica on the head: it may not die with one.",
        },
    )


def serve_config(deployment: Deployment, ray: RaySpec) -> dict[str, Any]:
    """The applications of Ray Serve, as `serve deploy` takes them."""
    arguments = {"model": deployment.served_model, **ray.args}
    application = serve_application(deployment.instance, ray.import_path, arguments, route_prefix="/")
    return {"http_options": {"host": "0.0.0.0", "port": RAY_PORT}, "applications": [application]}


def _pod(ray: RaySpec, engine: EnginePods, name: str, *, worker: bool) -> dict[str, Any]:
    volumes, mounts = with_volumes(
        [
            scratch("tmp", "/tmp", "20Gi"),
            scratch("shm", "/dev/shm", engine.shared_memory, memory=True),
            *mounted(engine),
        ]
    )
    gpu = engine.gpu if worker else None
    extra = {gpu.resource: str(gpu.count)} if gpu is not None and gpu.resource is not None else {}
    head = engine.model_copy(update={"cpu": HEAD_CPU, "memory": HEAD_MEMORY})
    container = {
        "name": name,
        "image": ray.image,
        "env": environment(engine, {"HOME": "/tmp", "USER": "forebay", "RAY_USAGE_STATS_ENABLED": "0"}),
        "ports": [{"name": "serve", "containerPort": RAY_PORT}],
        "resources": resources(engine if worker else head, extra),
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": engine.drain_s,
        **({} if engine.runtime_class is None else {"runtimeClassName": engine.runtime_class}),
        **(placement(engine) if worker else {}),
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": volumes,
    }
