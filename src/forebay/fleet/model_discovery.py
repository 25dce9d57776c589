"""What replicas serve, asked before a job starts; where all are away they are waited for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from forebay.clock import Clock, SystemClock
from forebay.engine.probe import ServedModel, list_models
from forebay.engine.retry import RetryPolicy, jitter_unit
from forebay.errors import EngineError, PipelineFailed, SettingError
from forebay.fleet.replicas.discovery import ReplicaList
from forebay.settings import SecretRef, read_secret

MAX_SAID = 4
"""Of how many replicas that are away a message tells."""


class Say(Protocol):
    """Told that the engine is waited for, and how long it has been, in seconds."""

    def __call__(self, words: str, waited_s: float) -> None: ...


def discover_model(
    replicas: ReplicaList,
    wanted: str | None,
    *,
    api_key: SecretRef | None,
    retry: RetryPolicy,
    deadline_s: float,
    keys: tuple[str, str],
    say: Say = lambda words, waited_s: None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """The name of the model to ask for, checked against what the replicas serve; blocks.

    One that answers is enough. Failures that may pass are tried again as `retry` says, until `deadline_s` is
    over. Raises `PipelineFailed` where they did not pass, and `SettingError` for others, where the replicas
    cannot be told, and where none of those that answer serves the model. `keys` are the settings that hold
    the addresses and the model, for messages.
    """
    url_key, model_key = keys
    key = None if api_key is None else read_secret(api_key)
    served = _served(
        replicas,
        key,
        policy=retry,
        within_s=deadline_s,
        url_key=url_key,
        say=say,
        clock=clock or SystemClock(),
        sleep=sleep,
    )
    names = {name for models in served.values() for name in models}
    if wanted is not None and wanted in names:
        return wanted
    if wanted is None and len(names) == 1:
        return names.pop()
    told = "; ".join(f"the engine at {url} serves {', '.join(m) or 'nothing'}" for url, m in served.items())
    if wanted is None:
        raise SettingError(f"{model_key}: expected a name: {told}")
    raise SettingError(f"{model_key}: {wanted!r} is not served: {told}")


def _served(
    replicas: ReplicaList,
    api_key: str | None,
    *,
    policy: RetryPolicy,
    within_s: float,
    url_key: str,
    say: Say,
    clock: Clock,
    sleep: Callable[[float], None],
) -> dict[str, list[str]]:
    """The names of the models, by the URL of each replica that answers; at least one does."""
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
            raise SettingError(f"{url_key}: the engine did not list its models: {error}")
        waited_s = clock.monotonic_s() - begin_s
        alike[policy.limit(error)] += 1
        delay_s = policy.next_delay_s(
            error,
            attempt=attempt,
            alike=alike[policy.limit(error)],
            left_s=within_s - waited_s,
            jitter_unit=jitter_unit(urls[0], attempt),
        )
        said = "; ".join(map(str, errors[:MAX_SAID]))
        if delay_s is None:
            raise PipelineFailed(
                f"the engine did not list its models: {said} ({attempt} tries in "
                f"{waited_s:.0f} s); nothing was started"
            )
        say(f"waiting for the engine, at most {within_s:g} s: {said}", waited_s)
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
