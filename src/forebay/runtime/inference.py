"""How a pipeline's events become answers: its engine and its calls, for a job and for `forebay ask`."""

from __future__ import annotations

from forebay.config.spec import PipelineSpec
from forebay.engine.base import EngineFactory
from forebay.fleet.cache_events.subscriber import require_zmq
from forebay.fleet.config import FleetConfig, stall_s_for
from forebay.fleet.engine import FleetEngineFactory
from forebay.fleet.replicas.discovery import ReplicaList
from forebay.flink.request_handler import InferenceSpec


def engine_of(spec: PipelineSpec, replicas: ReplicaList, model: str) -> EngineFactory:
    """The fleet that answers; a single URL is a fleet of one."""
    kv_events = spec.engine.kv_events
    if kv_events is not None:
        require_zmq()
    return FleetEngineFactory(
        FleetConfig(
            replicas,
            model=model,
            api_key=spec.engine.secret(),
            routing=spec.routing,
            kv_events=kv_events,
            stall_s=stall_s_for(spec.timeout_s),
            capacity=spec.capacity,
            deadline_s=spec.deadline_s,
        )
    )


def call_of(spec: PipelineSpec, *, replicas: ReplicaList, model: str) -> InferenceSpec:
    """How the pipeline's events become answers."""
    return InferenceSpec(
        engine=engine_of(spec, replicas, model),
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
    )
