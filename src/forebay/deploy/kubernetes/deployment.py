"""A pipeline or gateway with its deployment settings, and the names of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.connectors.kafka.settings import KafkaSource
from forebay.deploy.fields import SecretKey
from forebay.deploy.kubernetes.names import POOL, instance_name, labels, selector
from forebay.deploy.kubernetes.pod_settings import EnginePods, PipelinePods, PoolSpec
from forebay.deploy.kubernetes.settings import DeploymentSpec
from forebay.fields import Secret
from forebay.fleet.autoscale.base import ScalingLimits
from forebay.fleet.autoscale.settings import WHOLE, Share, limits_of_pools, shares
from forebay.gateway.spec import GatewaySpec
from forebay.pipeline.spec import PipelineSpec

ENGINE, GATEWAY, PIPELINE, RAY = "engine", "gateway", "pipeline", "ray"
PREFILL, DECODE = "prefill", "decode"
HTTP = "http"
ENGINE_PORT = 8000
GATEWAY_PORT = 8080
METRICS_PORT = 9090
FLINK_METRICS_PORT = 9249
DASHBOARD_PORT = 8265
RAY_TOKEN, RAY_TOKEN_KEY = "RAY_AUTH_TOKEN", "auth_token"
"""Ray's variable, and the key that KubeRay reads in the token's Secret."""


@dataclass(frozen=True, slots=True)
class Job:
    """A deployment's pipeline: `document` as in the file, its `spec`, its Flink cluster's `pods`."""

    spec: PipelineSpec
    document: Mapping[str, Any]
    pods: PipelinePods


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is rendered. Without a `job`, clients call the gateway, and only the gateway calls the engine."""

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
        """The engine's key, as its callers name it."""
        if self.job is not None:
            return self.job.spec.engine.api_key
        return None if self.gateway is None else self.gateway.engine.api_key

    @property
    def api_key_secret(self) -> SecretKey | None:
        """The Secret with the key; None without one, or if the key is in a file."""
        key, gateway = self.api_key, self.settings.gateway
        secrets = (
            self.job.pods.secrets if self.job is not None else {} if gateway is None else gateway.secrets
        )
        return None if key is None or key.env is None else secrets.get(key.env)

    @property
    def engine_service(self) -> str:
        """Service and pod port of the answering replicas."""
        return f"{self._service(DECODE) or self.name(ENGINE)}:{HTTP}"

    @property
    def prefill_service(self) -> str | None:
        """Likewise for the replicas that only prefill, if any."""
        name = self._service(PREFILL)
        return None if name is None else f"{name}:{HTTP}"

    @property
    def apart(self) -> bool:
        return self._service(DECODE) is not None

    def _service(self, role: str) -> str | None:
        return next((pool.name for pool in self.pools() if pool.pool.role == role), None)

    @property
    def ray_dashboard(self) -> str:
        """All heads of the Ray clusters: two during an upgrade."""
        return f"http://{self.name(RAY)}:{DASHBOARD_PORT}"

    @property
    def engine_place(self) -> dict[str, str]:
        """Where a router finds the replicas, as in `engine` of its settings."""
        if self.settings.ray is not None:
            return {"ray": f"{self.ray_dashboard}/{self.instance}"}
        return {"kubernetes": self.engine_service}

    @property
    def ray_token(self) -> dict[str, SecretKey]:
        """Variable with the Ray clusters' token, for pods that call dashboards."""
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
    """Replicas of one kind."""

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
