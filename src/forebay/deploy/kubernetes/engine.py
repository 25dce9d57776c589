"""The vLLM replicas: one Deployment, or one per pool, with Services, budget and drain; an InferencePool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forebay.deploy.fields import SecretKey
from forebay.deploy.kubernetes.deployment import ENGINE, ENGINE_PORT, Deployment, Pool
from forebay.deploy.kubernetes.manifest import Manifest, manifest
from forebay.deploy.kubernetes.pod_settings import EnginePods
from forebay.deploy.kubernetes.pods import (
    CONFIG_PATH,
    Volume,
    config_files,
    config_hash,
    environment,
    http_probe,
    mounted,
    placement,
    pod_spec,
    resources,
    scratch,
    spread,
)
from forebay.engine.launch.spec import API_KEY

CACHE = "/cache"
DRAIN = Path(__file__).parent.parent / "drain.py"
AFTER_DRAIN_S = 30
PROBE_S = 5
KV_TRANSFER_CONFIG = (
    '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'
)
"""Any replica can do both, so decoding ones prefill if no prefill replica works."""
NIXL_HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"
NIXL_PORT = 5600
"""vLLM's default; further ranks use the next ports."""
CONTAINER = "spec/template/spec/containers/0"


def engine_manifests(deployment: Deployment) -> Iterator[Manifest]:
    engine = deployment.settings.engine
    if engine is None or deployment.settings.ray is not None:
        return
    name = deployment.name(ENGINE)
    yield deployment.manifest(
        ENGINE,
        "ServiceAccount",
        {"automountServiceAccountToken": False},
        annotations=engine.service_account_annotations,
        notes={"automountServiceAccountToken": "vLLM never calls the API server."},
    )
    yield deployment.manifest(ENGINE, "ConfigMap", {"data": _files()})
    if engine.gpu is not None and engine.gpu.device_class is not None:
        yield claim_template(deployment, engine.gpu.device_class, engine.gpu.count)
    if not deployment.apart:
        yield _service(name, deployment.selector(ENGINE), deployment.labels(ENGINE))
    for pool in deployment.pools():
        if pool.name != name:
            yield _service(pool.name, dict(pool.selector), dict(pool.labels))
        yield _deployment(deployment, pool)
        yield _budget(pool)


def _files() -> dict[str, str]:
    return {DRAIN.name: DRAIN.read_text()}


def _service(name: str, selector: dict[str, str], labels: dict[str, str]) -> Manifest:
    content = {
        "spec": {
            "clusterIP": "None",
            "selector": selector,
            "ports": [{"name": "http", "port": ENGINE_PORT, "targetPort": "http"}],
        }
    }
    why = "Headless: its EndpointSlices name every replica that is ready; the router chooses."
    return manifest(ENGINE, "Service", name, content, labels=labels, notes={"spec/clusterIP": why})


def claim_template(deployment: Deployment, device_class: str, count: int) -> Manifest:
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class, "count": count}}
    return deployment.manifest(
        ENGINE, "ResourceClaimTemplate", {"spec": {"spec": {"devices": {"requests": [request]}}}}
    )


def _deployment(deployment: Deployment, pool: Pool) -> Manifest:
    engine = pool.engine
    scaled = deployment.settings.scaling is not None
    surge = engine.rollout == "surge"
    spec: dict[str, Any] = {
        **({} if scaled else {"replicas": pool.replicas}),
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": int(surge), "maxUnavailable": int(not surge)},
        },
        "progressDeadlineSeconds": engine.startup_s + 600,
        "selector": {"matchLabels": dict(pool.selector)},
        "template": {
            "metadata": {"labels": dict(pool.labels), "annotations": config_hash(_files())},
            "spec": _pod(deployment, pool),
        },
    }
    notes = {
        "spec/template/spec/terminationGracePeriodSeconds": "The drain, and time to end after it.",
        f"{CONTAINER}/lifecycle": "A removed replica finishes its requests; none is cut off.",
        f"{CONTAINER}/startupProbe": (
            f"Loading a model takes minutes: {engine.startup_s} s before it counts as failed."
        ),
        f"{CONTAINER}/livenessProbe": "Slow to act: a restart loses the cache and all work in flight.",
    }
    if scaled:
        notes["spec/strategy"] = (
            "No replicas here: the autoscaler owns the number, and applying this keeps it."
        )
    return manifest(ENGINE, "Deployment", pool.name, {"spec": spec}, labels=pool.labels, notes=notes)


def _pod(deployment: Deployment, pool: Pool) -> dict[str, Any]:
    engine = pool.engine
    drain = ["python3", f"{CONFIG_PATH}/drain.py", str(engine.drain_s), str(ENGINE_PORT)]
    container: dict[str, Any] = {
        "name": "vllm",
        "image": engine.image,
        "command": list(engine.command),
        "args": [
            engine.model,
            f"--served-model-name={deployment.served_model}",
            f"--port={ENGINE_PORT}",
            "--disable-uvicorn-access-log",
            "--enable-prompt-tokens-details",
            *((f"--kv-transfer-config={KV_TRANSFER_CONFIG}",) if deployment.apart else ()),
            *pool.args,
        ],
        "env": engine_environment(deployment, engine),
        "ports": [
            {"name": "http", "containerPort": ENGINE_PORT},
            *([{"name": "nixl", "containerPort": NIXL_PORT}] if deployment.apart else ()),
        ],
        "startupProbe": http_probe(
            "/health", "http", every_s=PROBE_S, failures=-(-engine.startup_s // PROBE_S)
        ),
        "readinessProbe": http_probe("/health", "http", every_s=PROBE_S, failures=2),
        "livenessProbe": http_probe("/health", "http", every_s=10, failures=6, timeout_s=10),
        "lifecycle": {"preStop": {"exec": {"command": drain}}},
    }
    volumes = [config_files(deployment.name(ENGINE))]
    grace_s = engine.drain_s + AFTER_DRAIN_S
    return engine_pod(deployment, container, volumes, pool.selector, grace_s=grace_s)


def engine_pod(
    deployment: Deployment,
    container: Mapping[str, Any],
    volumes: Sequence[Volume],
    selector: Mapping[str, str],
    *,
    grace_s: int,
) -> dict[str, Any]:
    engine = deployment.settings.engine
    assert engine is not None
    gpu, name = engine.gpu, deployment.name(ENGINE)
    extra = {gpu.resource: str(gpu.count)} if gpu is not None and gpu.resource is not None else {}
    needs, claims = resources(engine, extra), {}
    if gpu is not None and gpu.device_class is not None:
        needs["claims"] = [{"name": "gpu"}]
        claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}]}
    fields = {
        "serviceAccountName": name,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": grace_s,
        **({} if engine.runtime_class is None else {"runtimeClassName": engine.runtime_class}),
        **placement(engine),
        "topologySpreadConstraints": spread(selector),
        **claims,
    }
    return pod_spec({**container, "resources": needs}, [*volumes, *_engine_volumes(engine)], fields)


def engine_environment(
    deployment: Deployment, engine: EnginePods, own: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    own = {
        **(own or {}),
        "HOME": "/tmp",
        # Some libraries look up the user, who has no name in the image.
        "USER": "forebay",
        "HF_HOME": f"{CACHE}/huggingface",
        "VLLM_CACHE_ROOT": f"{CACHE}/vllm",
        "TRITON_CACHE_DIR": f"{CACHE}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
        "VLLM_NO_USAGE_STATS": "1",
        **({} if engine.egress else {"HF_HUB_OFFLINE": "1"}),
    }
    return [*environment(engine, own, _api_key(deployment)), *_side_channel(deployment, engine)]


def _side_channel(deployment: Deployment, engine: EnginePods) -> list[dict[str, Any]]:
    if not deployment.apart or NIXL_HOST in engine.env or NIXL_HOST in engine.secrets:
        return []
    return [{"name": NIXL_HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def _api_key(deployment: Deployment) -> dict[str, SecretKey]:
    ref = deployment.api_key_secret
    return {} if ref is None else {API_KEY: ref}


def _engine_volumes(engine: EnginePods) -> list[Volume]:
    cache: Volume = scratch("cache", CACHE, engine.cache.size)
    if engine.cache.claim is not None:
        claim = {"claimName": engine.cache.claim}
        cache = {"name": "cache", "persistentVolumeClaim": claim}, {"name": "cache", "mountPath": CACHE}
    return [
        cache,
        scratch("shm", "/dev/shm", engine.shared_memory, memory=True),
        scratch("tmp", "/tmp", "10Gi"),
        *mounted(engine),
    ]


def _budget(pool: Pool) -> Manifest:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": dict(pool.selector)}}
    return manifest(
        ENGINE,
        "PodDisruptionBudget",
        pool.name,
        {"spec": spec},
        labels=pool.labels,
        notes={"spec/maxUnavailable": "Nodes are emptied one replica at a time."},
    )


def inference_pool_manifests(deployment: Deployment) -> Iterator[Manifest]:
    wanted = deployment.settings.inference_pool
    if wanted is None:
        return
    picker = wanted.endpoint_picker
    spec = {
        "selector": {"matchLabels": deployment.selector(ENGINE)},
        "targetPorts": [{"number": ENGINE_PORT}],
        "endpointPickerRef": {
            "name": picker.name,
            "port": {"number": picker.port},
            "failureMode": "FailOpen",
        },
    }
    yield deployment.manifest(
        ENGINE,
        "InferencePool",
        {"spec": spec},
        part="inference-pool",
        notes={"spec/endpointPickerRef/failureMode": "Without the picker any replica is better than none."},
    )
