"""What the engine of a run serves, asked before anything starts; one that is away is waited for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from forebay.clock import Clock, SystemClock
from forebay.engine.probe import ServedModel, list_models
from forebay.engine.retry import jitter_unit
from forebay.errors import EngineError, PipelineFailed, SettingError
from forebay.pipelines.spec import PipelineSpec
from forebay.settings import read_secret


class Say(Protocol):
    """Told that the engine is waited for, and how long it has been, in seconds."""

    def __call__(self, words: str, waited_s: float) -> None: ...


def served_model(
    spec: PipelineSpec,
    url: str,
    say: Say = lambda words, waited_s: None,
    *,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """The name of the model to ask for, checked against what the engine serves; blocks.

    Failures that may pass are tried again as the pipeline's `retry` says, until its `deadline_s`. Raises
    `PipelineFailed` where they did not pass, and `SettingError` for others and where the engine does not
    serve the model.
    """
    names = [model.name for model in _served(spec, url, say, clock or SystemClock(), sleep)]
    if spec.engine.model is None:
        if len(names) != 1:
            raise SettingError(
                f"engine.model: expected a name: the engine at {url} serves {', '.join(names) or 'nothing'}"
            )
        return names[0]
    if spec.engine.model not in names:
        raise SettingError(
            f"engine.model: the engine at {url} does not serve {spec.engine.model!r}; "
            f"it serves {', '.join(names) or 'nothing'}"
        )
    return spec.engine.model


def _served(
    spec: PipelineSpec, url: str, say: Say, clock: Clock, sleep: Callable[[float], None]
) -> tuple[ServedModel, ...]:
    secret, policy = spec.engine.secret(), spec.retry.policy()
    begin_s = clock.monotonic_s()
    attempt, alike = 0, Counter[float]()
    while True:
        attempt += 1
        try:
            return asyncio.run(list_models(url, api_key=None if secret is None else read_secret(secret)))
        except EngineError as error:
            if not error.retryable:
                raise SettingError(
                    f"engine.url: the engine cannot be asked what it serves: {error}"
                ) from None
            waited_s = clock.monotonic_s() - begin_s
            alike[policy.limit(error)] += 1
            delay_s = policy.next_delay_s(
                error,
                attempt=attempt,
                alike=alike[policy.limit(error)],
                elapsed_s=waited_s,
                deadline_s=spec.deadline_s,
                jitter_unit=jitter_unit(url, attempt),
            )
            if delay_s is None:
                raise PipelineFailed(
                    f"the engine cannot be asked what it serves: {error} ({attempt} tries in "
                    f"{waited_s:.0f} s); nothing was started"
                ) from None
            say(f"waiting for the engine, at most {spec.deadline_s:g} s: {error}", waited_s)
        sleep(delay_s)
