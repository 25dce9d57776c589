"""Replicas, model, engine and calls, for jobs and `forebay ask`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay.clock import Clock
from forebay.engine import EngineFactory
from forebay.engine.inference_gateway import InferenceGatewayFactory
from forebay.engine.prices import to_pico
from forebay.engine.replica import ContextNeed, ServedModel, answer_need, check_context
from forebay.errors import SettingError
from forebay.fleet import discovery
from forebay.fleet.autoscale.settings import ScalingLink
from forebay.fleet.config import FleetConfig, FleetEngineFactory, stall_s_for
from forebay.fleet.discovery import FixedReplicas, Note, ReplicaList, discover_model
from forebay.flink.request_handler import EventClasses, InferenceSpec
from forebay.pipeline.cost_settings import prices_of
from forebay.pipeline.spec import PipelineSpec

NO_ENGINE = "http://none.invalid"


@dataclass(frozen=True, slots=True)
class Served:
    replicas: ReplicaList
    model: str
    scaling: ScalingLink | None = None


def served_by(spec: PipelineSpec, urls: Sequence[str], note: Note = lambda text, waited_s: None) -> Served:
    """Use replicas at `urls`, or the pipeline's own. Blocks. Raises as `served_model` and `check_prefill`."""
    if not spec.asks_model:
        return Served(FixedReplicas((NO_ENGINE,)), "none")
    replicas = FixedReplicas(tuple(urls)) if urls else spec.engine.replicas()
    if replicas is None:
        raise SettingError("engine.url: expected the address of an engine, found none")
    found = served_model(spec, replicas, note)
    check_context(context_need(spec), found)
    model = found.name
    prices_of(spec.prices, model)
    prefill = _prefill(spec, replicas)
    if prefill is not None:
        from forebay.fleet.disaggregated import check_prefill

        text = check_prefill(
            prefill, model, chat=spec.engine.api == "chat", api_key=spec.engine.secret(), key="engine.prefill"
        )
        if text:
            note(text, 0.0)
    return Served(replicas, model, published_scaling(spec))


def context_need(spec: PipelineSpec) -> ContextNeed:
    if spec.application is not None:
        return spec.application.context_need(spec.sampling.max_tokens)
    # Each event has its own answer length.
    return answer_need(1 if spec.answer_tokens is not None else spec.sampling.max_tokens)


def _prefill(spec: PipelineSpec, replicas: ReplicaList) -> ReplicaList | None:
    # The file's prefill servers belong to the file's replicas only.
    prefill = spec.engine.prefill if replicas == spec.engine.replicas() else None
    return None if prefill is None else prefill.replicas()


def published_scaling(spec: PipelineSpec) -> ScalingLink | None:
    """If something else starts the replicas, the job publishes how many it needs."""
    if spec.scaling is None:
        return None
    return ScalingLink(
        spec.scaling.settings(spec.sampling.max_tokens),
        subtasks=spec.parallelism,
        asks_each=spec.application is None or not spec.application.own_clock,
    )


def served_model(
    spec: PipelineSpec,
    replicas: ReplicaList,
    note: Note = lambda text, waited_s: None,
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> ServedModel:
    """Return the model to request; blocks and raises as `discover_model`.

    A gateway is queried only if no model is named.
    """
    if spec.engine.model is not None and _gateway(spec, replicas) is not None:
        return ServedModel(spec.engine.model)
    return discover_model(
        replicas,
        spec.engine.model,
        api_key=spec.engine.secret(),
        retry=spec.retry.policy(),
        deadline_s=spec.deadline_s,
        keys=("engine.url", "engine.model"),
        note=note,
        clock=clock,
        sleep=sleep,
    )


ASK_WITHIN_S = 10.0


def why_unserved(spec: PipelineSpec, served: Served) -> str:
    """Why the engine gets no requests; empty if a replica serves the model. Blocks."""
    gateway = _gateway(spec, served.replicas)
    if gateway is not None:
        why = gateway.why_refused(served.model, within_s=ASK_WITHIN_S)
    else:
        why = discovery.why_unserved(
            served.replicas, served.model, api_key=spec.engine.secret(), within_s=ASK_WITHIN_S
        )
    return f"the engine gets no requests: {why}" if why else ""


def engine_of(
    spec: PipelineSpec, replicas: ReplicaList, model: str, *, scaled: bool = False
) -> EngineFactory:
    gateway = _gateway(spec, replicas)
    if gateway is not None:
        return gateway
    fleet = FleetConfig(
        replicas,
        model=model,
        api_key=spec.engine.secret(),
        routing=spec.routing,
        kv_events=spec.engine.kv_events,
        stall_s=stall_s_for(spec.timeout_s),
        capacity=spec.capacity,
        deadline_s=spec.deadline_s,
        scaled=scaled,
    )
    prefill = _prefill(spec, replicas)
    if prefill is None:
        return FleetEngineFactory(fleet)
    from forebay.fleet.disaggregated import engine_factory  # imports numpy

    return engine_factory(fleet, prefill)


def _gateway(spec: PipelineSpec, replicas: ReplicaList) -> InferenceGatewayFactory | None:
    gateway = spec.engine.inference_gateway
    # The file's gateway belongs to the file's replicas only.
    if gateway is None or replicas != spec.engine.replicas():
        return None
    return InferenceGatewayFactory(spec.engine.url[0], gateway.headers(), spec.engine.secret())


def call_of(
    spec: PipelineSpec, *, replicas: ReplicaList, model: str, scaling: ScalingLink | None = None
) -> InferenceSpec:
    return InferenceSpec(
        engine=engine_of(spec, replicas, model, scaled=scaling is not None),
        model=model,
        prompt=spec.prompt_template(),
        schema=None if spec.output is None else spec.output.json_schema,
        sampling=spec.sampling.value(),
        timeout_s=spec.timeout_s,
        deadline_s=spec.deadline_s,
        retry=spec.retry.policy(),
        journal=None if spec.journal is None else spec.journal.config(),
        priority=spec.priority_template(),
        send_priority=spec.engine.priority,
        answer_tokens=spec.answer_tokens_template(),
        scaling=scaling,
        classes=None if scaling is None else _classes(spec, scaling),
        prices=prices_of(spec.prices, model) if spec.asks_model else None,
        budget_pico=to_pico(spec.budget.per_key_per_day) if spec.budget and spec.asks_model else None,
        opentelemetry=spec.name if spec.opentelemetry else None,
    )


def _classes(spec: PipelineSpec, scaling: ScalingLink) -> EventClasses | None:
    template = spec.class_template()
    if template is None:
        return None
    default, *others = scaling.settings.classes
    return EventClasses(template, default, tuple(others))
