"""A demo from its options to its summary: the engine is measured first, and the demo fits it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace

from forebay.demo.kafka import Topics, demo_kafka, run_between_topics
from forebay.demo.pace import Fit, Measured, fit, measure_engine
from forebay.demo.plan import Demo, DemoOptions, Summary, demo_of, summarize
from forebay.demo.question import weighs_topics
from forebay.engine.launch import Replicas
from forebay.runtime.flink_process import FlinkLauncher
from forebay.runtime.model_discovery import served_by
from forebay.runtime.run import Engine, RunOptions, run_pipeline
from forebay.runtime.snapshot import WAITING, Snapshot
from forebay.settings import Settings

SAID_CHARS = 100
SLOW_PER_S = 5.0
"""Below this, what to expect is said with the reason and the way out."""
Watch = Callable[[Snapshot], None]
Tell = Callable[[str], None]
"""Takes one line for a person."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a demo did. `first_answer_s`: from when the engine was ready to when the job had an answer."""

    last: Snapshot
    summary: Summary
    measured: Measured | None
    first_answer_s: float | None
    topics: Topics | None = None


def run_demo(
    options: DemoOptions,
    engine: Engine,
    settings: Settings,
    *,
    kafka: str | None = None,
    name: str = "demo",
    watch: Watch = lambda _: None,
    tell: Tell = lambda _: None,
) -> Outcome:
    """Run the demo for `options`, which `plan_demo` found right; blocks.

    `engine` is entered and measured; events and capacity that `options` leave open are chosen so that the
    demo takes about a minute at most. `kafka`: as `demo_kafka` takes it, None for files; topics are then made
    with `name` in theirs. Raises what `run_pipeline` raises.
    """
    with ExitStack() as open_:
        launcher = None
        if kafka is None:
            # While the engine starts, which takes longer, this is ready.
            launcher = open_.enter_context(FlinkLauncher(settings))
            launcher.start_ahead()
        urls = open_.enter_context(engine)
        ready_s = time.monotonic()
        first = _FirstAnswer(watch, ready_s)
        demo, measured = _fitted(options, urls, watch, tell)
        running = nullcontext(urls)
        if kafka is None:
            last = run_pipeline(
                demo.spec, running, RunOptions(fresh=True), settings, first, launcher=launcher
            )
            return Outcome(last, summarize(demo), measured, first.after_s)
        with demo_kafka(kafka, settings, options.out / "kafka") as bootstrap:
            last, summary, topics = run_between_topics(
                demo, bootstrap, name, engine=running, settings=settings, watch=first
            )
        return Outcome(last, summary, measured, first.after_s, topics)


def _fitted(
    options: DemoOptions, urls: Sequence[str], watch: Watch, tell: Tell
) -> tuple[Demo, Measured | None]:
    served = served_by(
        demo_of(options).spec,
        urls,
        lambda words, waited_s: watch(Snapshot(waited_s, WAITING, engine_failure=words)),
    )
    asked = replace(options, by_likelihood=weighs_topics(served.model))
    demo = demo_of(asked)
    measured = measure_engine(
        demo.spec, urls[0], model=served.model, text_field=demo.text_field, seed=options.seed
    )
    size = fit(measured, events=options.events, capacity=options.capacity)
    tell(expectation(measured, size, replayed=options.speed is not None, slow=_why_slow(urls)))
    return demo_of(replace(asked, events=size.events, capacity=size.capacity)), measured


def expectation(measured: Measured | None, size: Fit, *, replayed: bool, slow: str) -> str:
    """What to expect of a demo of that size, in words; `slow` says why an engine may be slow."""
    if measured is None:
        return (
            f"The engine answered no question in time ({slow}). {size.events} posts at most "
            f"{size.capacity} at a time; this may take many minutes."
        )
    speed = f"The engine answers about {_number(measured.per_s)} posts a second here"
    if measured.per_s < SLOW_PER_S:
        speed += f" ({slow})"
    text, answer = map(_printable, measured.example)
    took = (
        "at the times of your file"
        if replayed
        else f"about {_duration(size.seconds)}, Flink's start included"
    )
    return (
        f"{speed}; the first that it was asked: “{text}” → {answer}\n"
        f"{size.events} posts, at most {size.capacity} at a time: {took}."
    )


def _why_slow(urls: Sequence[str]) -> str:
    chosen = urls.dtype if isinstance(urls, Replicas) else None
    if chosen is None:
        return "it is slow, or busy with something else"
    return (
        f"this processor is slow or busy; the engine computes in {chosen.name}, {chosen.reason}; "
        "for one on another machine: --engine URL"
    )


def _printable(text: str) -> str:
    """What came from outside without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text[:SAID_CHARS])


def _number(per_s: float) -> str:
    return f"{per_s:.0f}" if per_s >= 10 else f"{per_s:.1f}"


def _duration(seconds: float) -> str:
    rounded = max(5, 5 * round(seconds / 5))
    return f"{rounded} s" if rounded < 120 else f"{round(seconds / 60)} min"


class _FirstAnswer:
    """Passes on what it is told, and notes when the first answer was there."""

    def __init__(self, watch: Watch, ready_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._watch = watch
        self._ready_s = ready_s
        self._now_s = now_s
        self.after_s: float | None = None

    def __call__(self, now: Snapshot) -> None:
        if self.after_s is None and now.results:
            self.after_s = round(self._now_s() - self._ready_s, 1)
        self._watch(now)
