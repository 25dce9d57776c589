"""What the replicas of a run serve, asked before anything starts; where all are away they are waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forebay.clock import Clock
from forebay.config.spec import PipelineSpec
from forebay.errors import SettingError
from forebay.fleet.model_discovery import Say, discover_model
from forebay.fleet.replicas.discovery import FixedReplicas, ReplicaList

NO_ENGINE = "http://none.invalid"
"""Where the replicas of a pipeline are that asks no model: the job makes no call."""


@dataclass(frozen=True, slots=True)
class Served:
    """The replicas of a run, and the name of the model to ask them for."""

    replicas: ReplicaList
    model: str


def served_by(spec: PipelineSpec, urls: Sequence[str], say: Say = lambda words, waited_s: None) -> Served:
    """The replicas at `urls`, or with none those that the pipeline names; blocks and raises as `served_model`
    does. A pipeline that asks no model needs none, and nothing is asked."""
    if not spec.asks_model:
        return Served(FixedReplicas((NO_ENGINE,)), "none")
    replicas = FixedReplicas(tuple(urls)) if urls else spec.engine.replicas()
    if replicas is None:
        raise SettingError("engine.url: expected the address of an engine, found none")
    return Served(replicas, served_model(spec, replicas, say))


def served_model(
    spec: PipelineSpec,
    replicas: ReplicaList,
    say: Say = lambda words, waited_s: None,
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """The name of the model to ask for; blocks and raises as `discover_model` does."""
    return discover_model(
        replicas,
        spec.engine.model,
        api_key=spec.engine.secret(),
        retry=spec.retry.policy(),
        deadline_s=spec.deadline_s,
        keys=("engine.url", "engine.model"),
        say=say,
        clock=clock,
        sleep=sleep,
    )
