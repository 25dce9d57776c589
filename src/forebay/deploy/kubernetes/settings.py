"""A deployment file: images, sizes, location of state, scaling. One pipeline file serves all environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from forebay.deploy.fields import MAX_REPLICAS, Count, Image, Label, ObjectName, Port, Replicas, Seconds
from forebay.deploy.kubernetes.pod_settings import MAX_ENTRIES, EnginePods, GatewayPods, PipelinePods
from forebay.fields import HttpUrl, Model, Switch, refuse_conflicts, wrong
from forebay.fleet.autoscale.base import ScalingLimits
from forebay.fleet.autoscale.settings import limits_of_pools


class ReplicaScaling(Model):
    """How many replicas there are, over all pools, and what scales them."""

    by: Literal["keda", "hpa", "controller"] = Field(
        "keda",
        description="`keda`: a ScaledObject that queries Prometheus. `hpa`: a HorizontalPodAutoscaler on the "
        "same metrics, whose result an adapter of yours serves as external metric. `controller`: a small "
        "program that reads the metrics of the pipeline's and the gateway's pods.",
    )
    image: Image | None = Field(None, description="Image of the controller; the gateway's is sufficient.")
    min: Replicas = Field(
        1,
        description="Fewest replicas, of all pools together; from 1 on, each pool has at least one. 0 needs "
        "`keda` or `controller`.",
    )
    max: Count = Field(description="Most replicas, of all pools together.")
    prometheus: HttpUrl | None = Field(
        None, description="Prometheus for KEDA: `http://prometheus.monitoring:9090`."
    )
    requests_per_replica: Count = Field(
        32,
        description="Requests in flight that one replica handles well. The requests of the gateway are "
        "divided by it, and those of the pipeline while its wanted number of replicas is unknown.",
    )
    settle_s: Annotated[int, Field(ge=0, le=3600)] = Field(
        300, description="How long fewer replicas must have been enough before one is removed."
    )


class PrometheusSpec(Model):
    """What Prometheus scrapes, and its alerts."""

    pod_monitor: Switch = Field(True, description="Render a PodMonitor, for the Prometheus operator.")
    rules: Literal["config_map", "prometheus_rule", "none"] = Field(
        "config_map", description="Alert rules as a file in a ConfigMap, as a PrometheusRule, or none."
    )
    namespace: Label = Field("monitoring", description="Namespace from which metrics may be read.")


class EndpointPicker(Model):
    """The Service of an endpoint picker."""

    name: ObjectName = Field(description="Name of the Service.")
    port: Port = Field(9002, description="Its port.")


class InferencePoolSpec(Model):
    """An InferencePool of the Gateway API over the replicas. The gateway's endpoint picker chooses the
    replica instead of Forebay's router, which sends each request's priority in headers.
    """

    url: HttpUrl = Field(description="Address of your inference gateway, which the pipeline calls.")
    endpoint_picker: EndpointPicker = Field(description="The endpoint picker.")
    objectives: Annotated[dict[ObjectName, int], Field(max_length=MAX_ENTRIES)] = Field(
        {},
        description="Your InferenceObjectives, each with the `priority` of the pipeline's events from which "
        "on they have it: `{urgent: 0, batch: 10}`.",
    )

    def model_post_init(self, context: object, /) -> None:
        if len(set(self.objectives.values())) < len(self.objectives):
            raise wrong("expected 'objectives' with priorities that differ")


class RaySpec(Model):
    """A RayService of KubeRay instead of vLLM's Deployments: the fleet of `forebay deploy ray`. The engine's
    image contains Ray Serve, vLLM and Forebay.
    """

    version: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")] = Field(
        "2.60.0", description="Version of Ray in the image."
    )
    gateway_class: ObjectName = Field(
        description="GatewayClass of the Gateway with which KubeRay records how far a new version has taken "
        "over; no request goes through it."
    )
    token_secret: ObjectName = Field(
        description="Secret whose `auth_token` is the clusters' token, required by their dashboards."
    )
    step_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        20, description="Share of the fleet that a new version takes over at a time."
    )
    surge_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        100,
        description="Extra capacity while a new version takes over, in percent of the fleet. 100: a second "
        "fleet; less needs fewer spare accelerators, but takes longer.",
    )
    interval_s: Seconds = Field(30, description="Pause between steps.")
    operator_namespace: Label = Field(
        "kuberay-operator", description="Namespace of KubeRay, which calls the cluster's dashboard."
    )


class FlinkOperatorSpec(Model):
    """Where the Flink Kubernetes operator runs."""

    namespace: Label = Field("flink-operator", description="Namespace of the operator, which calls the job.")


class DeploymentSpec(Model):
    """A deployment of one pipeline, or of a gateway with its engine."""

    name: Label | None = Field(
        None,
        description="Prefix of all objects' names, if there is no pipeline; otherwise the "
        "pipeline file has the name.",
    )
    namespace: Label | None = Field(
        None, description="Namespace of all objects; null: that of the kubectl context, by `--namespace`."
    )
    pipeline: PipelinePods | None = Field(
        None,
        description="The Flink cluster that runs the pipeline; null: there is none, and clients call the "
        "gateway.",
    )
    engine: EnginePods | None = Field(
        None, description="The vLLM replicas; null: the pipeline's `engine` is already running."
    )
    gateway: GatewayPods | None = Field(None, description="The gateway; null: none.")
    scaling: ReplicaScaling | None = Field(
        None, description="Who scales the replicas; null: they are not scaled."
    )
    monitoring: PrometheusSpec = Field(PrometheusSpec(), description="What Prometheus scrapes.")
    inference_pool: InferencePoolSpec | None = Field(
        None, description="An InferencePool for users of the Gateway API; null: none."
    )
    ray: RaySpec | None = Field(None, description="The engine as a RayService; null: vLLM's Deployments.")
    flink_operator: FlinkOperatorSpec = Field(
        FlinkOperatorSpec(), description="Where the Flink Kubernetes operator runs."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> DeploymentSpec:
        refuse_conflicts(self._problems())
        return self

    def _problems(self) -> Iterator[tuple[str, str]]:
        engine, scaling = self.engine, self.scaling
        if self.pipeline is None:
            if self.gateway is None:
                yield "pipeline", "missing; expected it, or 'gateway' and 'engine', found neither"
            if self.name is None:
                yield "name", "missing; without 'pipeline' it is required"
        elif self.name is not None:
            yield "name", "expected none with 'pipeline': the pipeline file has the name"
        if engine is None:
            for name in ("scaling", "gateway", "inference_pool", "ray"):
                if getattr(self, name) is not None:
                    yield name, "expected none without 'engine', because it is for the engine's replicas"
        if self.ray is not None:
            yield from self._problems_of_ray()
        if engine is not None:
            names = [pool.name for pool in engine.pools]
            if len(set(names)) < len(names):
                yield "engine.pools", "expected names that differ"
            if self.ray is None:
                yield from self._problems_of_roles(engine)
        if scaling is not None:
            yield from self._problems_of_scaling(scaling)
        if scaling is not None and self.inference_pool is not None and scaling.by != "keda":
            yield (
                "scaling.by",
                f"expected keda with 'inference_pool', because the pipeline sees no replicas and requests no "
                f"number of them, found {scaling.by}",
            )
        if self.gateway is not None and self.inference_pool is not None:
            yield "gateway", "expected none with 'inference_pool', whose gateway replaces it"

    def _problems_of_ray(self) -> Iterator[tuple[str, str]]:
        if self.inference_pool is not None:
            yield "inference_pool", "expected none with 'ray', whose engines have no port in common"
        if self.engine is not None and self.engine.pools:
            yield "engine.pools", "expected none with 'ray', because all replicas are of one kind"
        if self.engine is not None and any(
            "$(" in word for word in (*self.engine.command, *self.engine.args)
        ):
            yield (
                "engine.args",
                "expected no $(NAME) with 'ray', whose engines Kubernetes does not start; engines have the "
                "variables of engine.secrets, such as VLLM_API_KEY",
            )
        if self.scaling is not None and self.scaling.by != "controller":
            yield (
                "scaling.by",
                f"expected controller with 'ray', because Serve starts the replicas, found {self.scaling.by}",
            )
        if self.scaling is not None and self.scaling.max > MAX_REPLICAS:
            yield "scaling.max", f"expected at most {MAX_REPLICAS} with 'ray', found {self.scaling.max}"

    def _problems_of_roles(self, engine: EnginePods) -> Iterator[tuple[str, str]]:
        roles = [pool.role or "none" for pool in engine.pools]
        if set(roles) <= {"none"}:
            return
        if self.inference_pool is not None:
            yield (
                "engine.pools",
                "expected no role with 'inference_pool', whose picker sends to one replica only",
            )
        elif sorted(roles) != ["decode", "prefill"]:
            yield (
                "engine.pools",
                f"expected two, one with role: prefill and one with role: decode, found {', '.join(roles)}",
            )

    def _problems_of_scaling(self, scaling: ReplicaScaling) -> Iterator[tuple[str, str]]:
        if scaling.min > scaling.max:
            yield "scaling.min", f"expected at most scaling.max ({scaling.max}), found {scaling.min}"
        if scaling.by == "keda" and scaling.prometheus is None:
            yield (
                "scaling.prometheus",
                "missing; KEDA reads its metrics from it, such as http://prometheus:9090",
            )
        if scaling.by == "controller" and scaling.image is None:
            yield "scaling.image", "missing; the controller needs one, such as that of the gateway"
        if scaling.by == "hpa" and scaling.min == 0:
            yield (
                "scaling.min",
                "expected at least 1 with scaling.by hpa, found 0; KEDA and controller go to 0",
            )
        if self.engine is not None:
            yield from _problems_of_replicas(self.engine, scaling)


def _problems_of_replicas(engine: EnginePods, scaling: ReplicaScaling) -> Iterator[tuple[str, str]]:
    pools = engine.pools or (engine,)
    begin = sum(pool.replicas for pool in pools)
    if len(pools) > scaling.max:
        yield (
            "scaling.max",
            f"expected at least one replica for each of the {len(pools)} pools, found {scaling.max}",
        )
    if begin > scaling.max:
        yield "scaling.max", f"expected at least the {begin} initial replicas, found {scaling.max}"
    elif 0 < len(engine.pools) <= scaling.max:
        bounds = limits_of_pools(ScalingLimits(0, scaling.max), [pool.share for pool in engine.pools])
        for i, (pool, limits) in enumerate(zip(engine.pools, bounds, strict=True)):
            if pool.replicas > limits.most:
                yield (
                    f"engine.pools[{i}].replicas",
                    f"expected at most {limits.most}, its share of scaling.max ({scaling.max}), found "
                    f"{pool.replicas}",
                )
