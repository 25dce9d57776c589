"""A pipeline or gateway with its deployment settings, and the names of its objects, labels and metrics."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.connectors.kafka.settings import KafkaSource
from forebay.deploy.fields import SecretKey
from forebay.deploy.kubernetes.manifest import Manifest, manifest
from forebay.deploy.kubernetes.pod_settings import EnginePods, PipelinePods, PoolSpec
from forebay.deploy.kubernetes.settings import DeploymentSpec
from forebay.fields import Secret
from forebay.fleet.autoscale.base import ScalingLimits
from forebay.fleet.autoscale.settings import WHOLE, Share, limits_of_pools, shares
from forebay.flink.metric_names import PREFIX
from forebay.gateway.peak_load import PEAK_LOAD
from forebay.gateway.spec import GatewaySpec
from forebay.pipeline.spec import PipelineSpec

MAX_CHARS = 40
"""Leaves room for suffixes: Flink's operator takes 45 characters, a label 63."""
HASH_CHARS = 8
APPLICATION = "forebay"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
MANAGED_BY = "app.kubernetes.io/managed-by"
POOL = "forebay/pool"


def instance_name(pipeline: str) -> str:
    """The prefix of a pipeline's object names: a DNS label (RFC 1035) of at most 40 characters.

    An invalid name gets a hash, so that no two pipelines share a prefix.

    >>> instance_name("triage")
    'triage'
    >>> instance_name("3-bears")
    'p-3-bears-0f44afa1'
    """
    if re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", pipeline) and len(pipeline) <= MAX_CHARS:
        return pipeline
    digest = hashlib.sha256(pipeline.encode()).hexdigest()[:HASH_CHARS]
    room = MAX_CHARS - HASH_CHARS - 1
    stem = pipeline if re.match(r"[a-z]", pipeline) else f"p-{pipeline}"
    return f"{stem[:room].rstrip('-')}-{digest}"


def labels(instance: str, component: str) -> dict[str, str]:
    """`--remove` selects by them."""
    return {"app.kubernetes.io/name": APPLICATION, **selector(instance, component), MANAGED_BY: APPLICATION}


def selector(instance: str, component: str) -> dict[str, str]:
    """Must never change while the pods run."""
    return {INSTANCE: instance, COMPONENT: component}


def owned_by(instance: str) -> str:
    return f"{MANAGED_BY}={APPLICATION},{INSTANCE}={instance}"


ENGINE, GATEWAY, PIPELINE, RAY = "engine", "gateway", "pipeline", "ray"
PREFILL, DECODE = "prefill", "decode"
HTTP = "http"
ENGINE_PORT = 8000
GATEWAY_PORT = 8080
METRICS_PORT = 9090
FLINK_METRICS_PORT = 9249
DASHBOARD_PORT = 8265
RAY_TOKEN, RAY_TOKEN_KEY = "RAY_AUTH_TOKEN", "auth_token"


@dataclass(frozen=True, slots=True)
class Job:
    spec: PipelineSpec
    document: Mapping[str, Any]
    pods: PipelinePods


@dataclass(frozen=True, slots=True)
class Deployment:
    """Without a `job`, clients call the gateway, and only the gateway calls the engine."""

    settings: DeploymentSpec
    job: Job | None = None
    gateway: GatewaySpec | None = None
    gateway_document: Mapping[str, Any] | None = None

    @property
    def instance(self) -> str:
        name = self.settings.name if self.job is None else self.job.spec.name
        return instance_name(str(name))

    def name(self, component: str) -> str:
        return self.instance if component == PIPELINE else f"{self.instance}-{component}"

    def labels(self, component: str) -> dict[str, str]:
        return labels(self.instance, component)

    def selector(self, component: str) -> dict[str, str]:
        return selector(self.instance, component)

    def manifest(
        self,
        component: str,
        kind: str,
        content: Mapping[str, Any],
        *,
        name: str | None = None,
        part: str | None = None,
        annotations: Mapping[str, str] | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> Manifest:
        return manifest(
            part or component,
            kind,
            name or self.name(component),
            content,
            labels=self.labels(component),
            annotations=annotations,
            notes=notes,
        )

    @property
    def connectors(self) -> tuple[str, ...]:
        if self.job is None:
            return ()
        pipeline = self.job.spec
        return ("kafka",) if isinstance(pipeline.source, KafkaSource) or pipeline.topics() else ()

    @property
    def served_model(self) -> str | None:
        engine = self.settings.engine
        if engine is None:
            return None
        return engine.model if self.job is None else self.job.spec.engine.model or engine.model

    @property
    def api_key(self) -> Secret | None:
        if self.job is not None:
            return self.job.spec.engine.api_key
        return None if self.gateway is None else self.gateway.engine.api_key

    @property
    def api_key_secret(self) -> SecretKey | None:
        """None without a key, or if it is in a file."""
        key, gateway = self.api_key, self.settings.gateway
        secrets = (
            self.job.pods.secrets if self.job is not None else {} if gateway is None else gateway.secrets
        )
        return None if key is None or key.env is None else secrets.get(key.env)

    @property
    def engine_service(self) -> str:
        return f"{self._service(DECODE) or self.name(ENGINE)}:{HTTP}"

    @property
    def prefill_service(self) -> str | None:
        name = self._service(PREFILL)
        return None if name is None else f"{name}:{HTTP}"

    @property
    def apart(self) -> bool:
        return self._service(DECODE) is not None

    def _service(self, role: str) -> str | None:
        return next((pool.name for pool in self.pools() if pool.pool.role == role), None)

    @property
    def ray_dashboard(self) -> str:
        """Covers all heads: two during an upgrade."""
        return f"http://{self.name(RAY)}:{DASHBOARD_PORT}"

    @property
    def engine_place(self) -> dict[str, str]:
        if self.settings.ray is not None:
            return {"ray": f"{self.ray_dashboard}/{self.instance}"}
        return {"kubernetes": self.engine_service}

    @property
    def ray_token(self) -> dict[str, SecretKey]:
        ray = self.settings.ray
        return {} if ray is None else {RAY_TOKEN: SecretKey(name=ray.token_secret, key=RAY_TOKEN_KEY)}

    def pools(self) -> tuple[Pool, ...]:
        engine = self.settings.engine
        if engine is None:
            return ()
        base, chosen = self.name(ENGINE), self.selector(ENGINE)
        if not engine.pools:
            whole = PoolSpec(name="all", replicas=engine.replicas)
            return (Pool(base, engine, whole, chosen, self.labels(ENGINE), WHOLE, self._limits((1,))[0]),)
        parts = [pool.share for pool in engine.pools]
        return tuple(
            Pool(
                f"{base}-{pool.name}",
                engine,
                pool,
                {**chosen, POOL: pool.name},
                {**self.labels(ENGINE), POOL: pool.name},
                share,
                limits,
            )
            for pool, share, limits in zip(engine.pools, shares(parts), self._limits(parts), strict=True)
        )

    def _limits(self, parts: Sequence[int]) -> tuple[ScalingLimits, ...]:
        scaling = self.settings.scaling
        if scaling is None:
            return (ScalingLimits(),) * len(parts)
        return limits_of_pools(ScalingLimits(scaling.min, scaling.max), parts)


@dataclass(frozen=True, slots=True)
class Pool:
    name: str
    engine: EnginePods
    pool: PoolSpec
    selector: Mapping[str, str]
    labels: Mapping[str, str]
    share: Share
    limits: ScalingLimits

    @property
    def replicas(self) -> int:
        return self.pool.replicas

    @property
    def args(self) -> tuple[str, ...]:
        return (*self.engine.args, *self.pool.args)


WANTED = f"{PREFIX}wanted_replicas"
"""Booting ones included."""
BACKLOG_TOKENS = f"{PREFIX}backlog_tokens"
REPLICAS = f"{PREFIX}replicas"
IN_FLIGHT = f"{PREFIX}in_flight"
PENDING = f"{PREFIX}pending"
RESULTS = f"{PREFIX}results_total"
RECORDS = f"{PREFIX}records_total"
RUNNING = "vllm:num_requests_running"
"""Missing while vLLM loads its model."""
EXTERNAL_METRIC = "forebay_wanted_replicas"
"""Recorded by a rule, served to an HPA by an adapter."""


def series_label(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", label)


def of_pipeline(deployment: Deployment, metric: str) -> str:
    return series(metric, deployment.selector(PIPELINE))


def gateway_load(deployment: Deployment) -> str:
    return series(PEAK_LOAD, deployment.selector(GATEWAY))


def series(metric: str, selector: Mapping[str, str]) -> str:
    chosen = ",".join(f'{series_label(label)}="{value}"' for label, value in selector.items())
    return f"{metric}{{{chosen}}}"
