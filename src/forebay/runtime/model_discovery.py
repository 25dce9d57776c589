"""What the replicas of a run serve, asked before anything starts; where all are away they are waited for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay.clock import Clock, SystemClock
from forebay.config.spec import PipelineSpec
from forebay.engine.probe import ServedModel, list_models
from forebay.engine.retry import jitter_unit
from forebay.errors import EngineError, PipelineFailed, SettingError
from forebay.fleet.replicas.discovery import FixedReplicas, ReplicaList
from forebay.settings import read_secret

MAX_SAID = 4
"""Of how many replicas that are away a message tells."""
NO_ENGINE = "http://none.invalid"
"""Where the replicas of a pipeline are that asks no model: the job makes no call."""


class Say(Protocol):
    """Told that the engine is waited for, and how long it has been, in seconds."""

    def __call__(self, words: str, waited_s: float) -> None: ...


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
    """The name of the model to ask for, checked against what the replicas serve; blocks.

    One that answers is enough. Failures that may pass are tried again as the pipeline's `retry` says, until
    its `deadline_s`. Raises `PipelineFailed` where they did not pass, and `SettingError` for others, where
    the replicas cannot be told, and where none of those that answer serves the model.
    """
    served = _served(spec, replicas, say, clock or SystemClock(), sleep)
    names = {name for models in served.values() for name in models}
    wanted = spec.engine.model
    if wanted is not None and wanted in names:
        return wanted
    if wanted is None and len(names) == 1:
        return names.pop()
    told = "; ".join(f"the engine at {url} serves {', '.join(m) or 'nothing'}" for url, m in served.items())
    if wanted is None:
        raise SettingError(f"engine.model: expected a name: {told}")
    raise SettingError(f"engine.model: {wanted!r} is not served: {told}")


def _served(
    spec: PipelineSpec,
    replicas: ReplicaList,
    say: Say,
    clock: Clock,
    sleep: Callable[[float], None],
) -> dict[str, list[str]]:
    """The names of the models, by the URL of each replica that answers; at least one does."""
    secret, policy = spec.engine.secret(), spec.retry.policy()
    api_key = None if secret is None else read_secret(secret)
    begin_s = clock.monotonic_s()
    attempt, alike = 0, Counter[float]()
    while True:
        attempt += 1
        urls, answers = asyncio.run(_ask(replicas, api_key))
        served = {
            url: [model.name for model in answer]
            for url, answer in zip(urls, answers, strict=True)
            if not isinstance(answer, EngineError)
        }
        if served:
            return served
        errors = [answer for answer in answers if isinstance(answer, EngineError)]
        error = next((error for error in errors if error.retryable), errors[0])
        if not error.retryable:
            raise SettingError(f"engine.url: the engine did not list its models: {error}")
        waited_s = clock.monotonic_s() - begin_s
        alike[policy.limit(error)] += 1
        delay_s = policy.next_delay_s(
            error,
            attempt=attempt,
            alike=alike[policy.limit(error)],
            left_s=spec.deadline_s - waited_s,
            jitter_unit=jitter_unit(urls[0], attempt),
        )
        said = "; ".join(map(str, errors[:MAX_SAID]))
        if delay_s is None:
            raise PipelineFailed(
                f"the engine did not list its models: {said} ({attempt} tries in "
                f"{waited_s:.0f} s); nothing was started"
            )
        say(f"waiting for the engine, at most {spec.deadline_s:g} s: {said}", waited_s)
        sleep(delay_s)


async def _ask(
    replicas: ReplicaList, api_key: str | None
) -> tuple[tuple[str, ...], list[tuple[ServedModel, ...] | EngineError]]:
    async def ask(url: str) -> tuple[ServedModel, ...] | EngineError:
        try:
            return await list_models(url, api_key=api_key)
        except EngineError as error:
            return error

    urls = await replicas.urls()
    return urls, await asyncio.gather(*map(ask, urls))
