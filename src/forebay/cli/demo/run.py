"""Runs a demo: measures the engine first and chooses a demo of the right size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import count

from forebay.cli.demo.kafka import DemoTopics, demo_kafka, run_between_topics
from forebay.cli.demo.plan import Demo, DemoOptions, DemoSummary, demo_of, summarize
from forebay.cli.demo.topics import weighs_topics
from forebay.clock import Clock, SystemClock
from forebay.connectors.generator.posts import TOPICS, post, topic_of
from forebay.engine import Engine
from forebay.engine.client import HttpEngine
from forebay.engine.launch import Replicas
from forebay.errors import EngineError
from forebay.pipeline.flink_process import FlinkLauncher
from forebay.pipeline.inference import served_by
from forebay.pipeline.plan import Plan
from forebay.pipeline.run import OpenEngine, run_pipeline
from forebay.pipeline.snapshot import WAITING, Snapshot
from forebay.pipeline.spec import PipelineSpec
from forebay.records import Request
from forebay.settings import Settings, read_secret

MEASURE_S = 1.0
MIN_S = 1e-3
MAX_S = 15.0
"""If the engine has not answered its first question by then, do not wait any longer."""
IN_FLIGHT = 8
SEED_APART = 1_000_003
"""Added to the demo's seed, so that measuring does not fill the prefix cache with the demo's prompts."""
MAX_EVENTS, MIN_EVENTS = 300, 60
RUN_S = 60.0
WAIT_S = 1.0
MAX_CAPACITY, MIN_CAPACITY = 32, IN_FLIGHT
START_S = 8.0
"""Approximate time for Flink to start a job on two cores."""


@dataclass(frozen=True, slots=True)
class DemoMeasurement:
    """`example`: the first post and its answer."""

    answers: int
    per_s: float
    example: tuple[str, str]


@dataclass(frozen=True, slots=True)
class DemoFit:
    events: int
    capacity: int
    seconds: float


def fit(
    measured: DemoMeasurement | None, *, events: int | None = None, capacity: int | None = None
) -> DemoFit:
    """A demo of about a minute for an engine of that speed; the smallest for one without an answer."""
    per_s = measured.per_s if measured is not None else 1 / MAX_S
    fitted = min(MAX_EVENTS, max(MIN_EVENTS, int(per_s * RUN_S))) if events is None else events
    return DemoFit(
        fitted,
        min(MAX_CAPACITY, max(MIN_CAPACITY, int(per_s * WAIT_S))) if capacity is None else capacity,
        START_S + fitted / per_s,
    )


async def measure(
    engine: Engine, spec: PipelineSpec, *, model: str, text_field: str, seed: int, clock: Clock | None = None
) -> DemoMeasurement | None:
    """Send other generated posts for a second or two. Ignores the first answer, which is slower."""
    now, numbers, apart = clock or SystemClock(), count(), seed + SEED_APART
    done: list[tuple[str, str]] = []

    async def ask() -> None:
        index = next(numbers)
        topic = topic_of(apart, index, burst_topic="outage", share=1 / len(TOPICS))
        text = post(apart, index, topic)["text"]
        request = _request(spec, model, text_field, text, index)
        done.append((text, (await engine.complete(request, timeout_s=MAX_S)).text.strip()))

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
        await asyncio.wait_for(asyncio.gather(*several), MAX_S)
    took_s, answers = now.monotonic_s() - begin_s, len(done) - 1
    if not answers:
        return DemoMeasurement(1, 1 / max(first_s, MIN_S), done[0])
    return DemoMeasurement(answers, answers / max(took_s, MIN_S), done[0])


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


SHOWN_CHARS = 100
SLOW_PER_S = 5.0
"""Below this rate, the demo reports why and what to do."""
Watch = Callable[[Snapshot], None]
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """`first_answer_s`: from the engine being ready to the job's first answer."""

    last: Snapshot
    summary: DemoSummary
    measured: DemoMeasurement | None
    first_answer_s: float | None
    topics: DemoTopics | None = None


def run_demo(
    options: DemoOptions,
    engine: OpenEngine,
    settings: Settings,
    *,
    kafka: str | None = None,
    name: str = "demo",
    watch: Watch = lambda _: None,
    note: Note = lambda _: None,
) -> DemoOutcome:
    """Measure `engine`, run a demo of the right size, with Kafka or files, and sum it up; blocks."""
    with ExitStack() as stack:
        launcher = None
        if kafka is None:
            # Flink starts while the engine does, which takes longer.
            launcher = stack.enter_context(FlinkLauncher())
            launcher.start(Plan(demo_of(options).spec, settings))
        urls = stack.enter_context(engine)
        ready_s = time.monotonic()
        first = _FirstAnswer(watch, ready_s)
        demo, measured = _fitted(options, urls, watch, note)
        running = nullcontext(urls)
        if kafka is None:
            plan = Plan(demo.spec, settings, fresh=True)
            last = run_pipeline(plan, running, first, launcher=launcher)
            return DemoOutcome(last, summarize(demo), measured, first.after_s)
        with demo_kafka(kafka, settings, options.out / "kafka") as bootstrap:
            last, summary, topics = run_between_topics(
                demo, bootstrap, name, engine=running, settings=settings, watch=first
            )
        return DemoOutcome(last, summary, measured, first.after_s, topics)


def _fitted(
    options: DemoOptions, urls: Sequence[str], watch: Watch, note: Note
) -> tuple[Demo, DemoMeasurement | None]:
    def waits(text: str, waited_s: float) -> None:
        watch(Snapshot(waited_s, WAITING, engine_failure=text))

    served = served_by(demo_of(options).spec, urls, waits)
    asked = replace(options, by_likelihood=weighs_topics(served.model))
    demo = demo_of(asked)
    secret = demo.spec.engine.secret()

    async def run() -> DemoMeasurement | None:
        engine = HttpEngine(urls[0], api_key=None if secret is None else read_secret(secret), stream=False)
        try:
            field, seed = demo.text_field, options.seed
            return await measure(engine, demo.spec, model=served.model, text_field=field, seed=seed)
        finally:
            await engine.close()

    measured = asyncio.run(run())
    size = fit(measured, events=options.events, capacity=options.capacity)
    note(expectation(measured, size, replayed=options.speed is not None, slow=_why_slow(urls)))
    return demo_of(replace(asked, events=size.events, capacity=size.capacity)), measured


def expectation(measured: DemoMeasurement | None, size: DemoFit, *, replayed: bool, slow: str) -> str:
    if measured is None:
        return (
            f"The engine answered no question in time ({slow}). {size.events} posts, at most "
            f"{size.capacity} at a time; this may take many minutes."
        )
    number = f"{measured.per_s:.{0 if measured.per_s >= 10 else 1}f}"
    speed = f"The engine answers about {number} posts a second here"
    if measured.per_s < SLOW_PER_S:
        speed += f" ({slow})"
    text, answer = map(_printable, measured.example)
    took = "at the times of your file"
    if not replayed:
        seconds = max(5, 5 * round(size.seconds / 5))
        duration = f"{seconds} s" if seconds < 120 else f"{round(size.seconds / 60)} min"
        took = f"about {duration}, including Flink's start"
    return (
        f"{speed}; its first answer: “{text}” → {answer}\n"
        f"{size.events} posts, at most {size.capacity} at a time: {took}."
    )


def _why_slow(urls: Sequence[str]) -> str:
    chosen = urls.dtype if isinstance(urls, Replicas) else None
    if chosen is None:
        return "it is slow, or busy with something else"
    return (
        f"this processor is slow or busy; the engine computes in {chosen.name}, {chosen.reason}; "
        "to use one on another machine: --engine URL"
    )


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:SHOWN_CHARS])


class _FirstAnswer:
    def __init__(self, watch: Watch, ready_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._watch = watch
        self._ready_s = ready_s
        self._now_s = now_s
        self.after_s: float | None = None

    def __call__(self, now: Snapshot) -> None:
        if self.after_s is None and now.results:
            self.after_s = round(self._now_s() - self._ready_s, 1)
        self._watch(now)
