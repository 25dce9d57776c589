"""How fast an engine answers the demo's question, and the demo that fits it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from forebay.clock import Clock, SystemClock
from forebay.config.spec import PipelineSpec
from forebay.connectors.generator.posts import TOPICS, post, topic_of
from forebay.engine.base import Engine
from forebay.engine.client import HttpEngine
from forebay.errors import EngineError
from forebay.records import Request
from forebay.settings import read_secret

MEASURE_S = 1.0
LEAST_S = 1e-3
MOST_S = 15.0
"""An engine that has not answered its first question by then is too slow to be waited for any longer."""
IN_FLIGHT = 8
SEED_APART = 1_000_003
"""Added to the demo's seed: what is asked while measuring must not be in the prefix cache later."""
MOST_EVENTS, LEAST_EVENTS = 300, 60
RUN_S = 60.0
WAIT_S = 1.0
MOST_CAPACITY, LEAST_CAPACITY = 32, IN_FLIGHT
START_S = 8.0
"""What Flink takes to start a job on two cores, roughly."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What an engine did while it was measured. `example`: the first post, and what it said of it."""

    answers: int
    per_s: float
    example: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Fit:
    """How large the demo is to be, and how long it should take."""

    events: int
    capacity: int
    seconds: float


def fit(measured: Measured | None, *, events: int | None = None, capacity: int | None = None) -> Fit:
    """The demo for an engine of that speed: about a minute of answers at most, and in flight what it answers
    in a second, so that the first answer comes soon, but not less than it was measured with. What the user
    gave stays. An engine that answered nothing gets the smallest."""
    per_s = measured.per_s if measured is not None else 1 / MOST_S
    fitted = min(MOST_EVENTS, max(LEAST_EVENTS, int(per_s * RUN_S))) if events is None else events
    return Fit(
        fitted,
        min(MOST_CAPACITY, max(LEAST_CAPACITY, int(per_s * WAIT_S))) if capacity is None else capacity,
        START_S + fitted / per_s,
    )


def measure_engine(
    spec: PipelineSpec, url: str, *, model: str, text_field: str, seed: int
) -> Measured | None:
    """Ask the engine at `url` the question of `spec` about other made-up posts, for a second or two; blocks,
    at most twice `MOST_S`. None where it did not answer even one."""
    secret = spec.engine.secret()

    async def run() -> Measured | None:
        engine = HttpEngine(url, api_key=None if secret is None else read_secret(secret), stream=False)
        try:
            return await measure(engine, spec, model=model, text_field=text_field, seed=seed)
        finally:
            await engine.close()

    return asyncio.run(run())


async def measure(
    engine: Engine,
    spec: PipelineSpec,
    *,
    model: str,
    text_field: str,
    seed: int,
    clock: Clock | None = None,
) -> Measured | None:
    """As `measure_engine` has it. The first answer is not counted: it is slower than those after it."""
    now, numbers, apart = clock or SystemClock(), count(), seed + SEED_APART
    done: list[tuple[str, str]] = []

    async def ask() -> None:
        index = next(numbers)
        topic = topic_of(apart, index, burst_topic="outage", share=1 / len(TOPICS))
        text = post(apart, index, topic)["text"]
        request = _request(spec, model, text_field, text, index)
        done.append((text, (await engine.complete(request, timeout_s=MOST_S)).text.strip()))

    async def ask_until(end_s: float) -> None:
        while now.monotonic_s() < end_s:
            await ask()

    begin_s = now.monotonic_s()
    try:
        await ask()
    except EngineError:
        return None
    first_s, begin_s = now.monotonic_s() - begin_s, now.monotonic_s()
    with suppress(EngineError, asyncio.TimeoutError):
        several = (ask_until(begin_s + MEASURE_S) for _ in range(IN_FLIGHT))
        await asyncio.wait_for(asyncio.gather(*several), MOST_S)
    took_s, answers = now.monotonic_s() - begin_s, len(done) - 1
    if not answers:
        return Measured(1, 1 / max(first_s, LEAST_S), done[0])
    return Measured(answers, answers / max(took_s, LEAST_S), done[0])


def _request(spec: PipelineSpec, model: str, text_field: str, text: str, index: int) -> Request:
    template = spec.prompt_template()
    assert template is not None
    rendered = template.render({text_field: text})
    named = {"prompt": rendered} if isinstance(rendered, str) else {"messages": rendered}
    return Request(
        id=f"demo-measure-{index}",
        model=model,
        sampling=spec.sampling.value(),
        schema=spec.output.json_schema if spec.output is not None else None,
        **named,
    )
