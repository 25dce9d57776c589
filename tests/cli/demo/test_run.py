"""Measuring an engine's speed, and the size of the demo for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock

from forebay.cli.demo.plan import DemoOptions, demo_of
from forebay.cli.demo.run import (
    IN_FLIGHT,
    MAX_CAPACITY,
    MAX_EVENTS,
    MIN_CAPACITY,
    MIN_EVENTS,
    RUN_S,
    WAIT_S,
    DemoFit,
    DemoMeasurement,
    _FirstAnswer,
    expectation,
    fit,
    measure,
)
from forebay.connectors.generator.posts import post, topic_of
from forebay.engine import Deadline
from forebay.errors import AttemptTimeout, EngineError, Unreachable
from forebay.pipeline.snapshot import Snapshot
from forebay.records import Completion, Request, Timing, Usage


class Paced:
    """An engine that serves one request at a time, `seconds` each on its own clock; the first takes
    `first_s`, and from call `fails_from` on it fails."""

    def __init__(self, seconds: float, first_s: float = 1.0, fails_from: int | None = None) -> None:
        self.clock = ManualClock()
        self.requests: list[Request] = []
        self.error: EngineError = AttemptTimeout("too slow")
        self._seconds, self._first_s, self._fails_from = seconds, first_s, fails_from

    async def complete(
        self, request: Request, *, timeout_s: float, deadline: Deadline | None = None
    ) -> Completion:
        self.requests.append(request)
        if self._fails_from is not None and len(self.requests) > self._fails_from:
            raise self.error
        self.clock.advance(self._seconds if len(self.requests) > 1 else self._first_s)
        await asyncio.sleep(0)
        return Completion(" outage", "length", Usage(), Timing(0.0, 0.0))

    async def close(self) -> None: ...


async def measured(engine: Paced, tmp_path: Path, *, by_likelihood: bool = True) -> DemoMeasurement | None:
    demo = demo_of(DemoOptions(out=tmp_path, by_likelihood=by_likelihood))
    return await measure(engine, demo.spec, model="m", text_field=demo.text_field, seed=1, clock=engine.clock)


async def test_engine_speed_is_measured_with_other_posts(tmp_path: Path) -> None:
    engine = Paced(0.02)
    found = await measured(engine, tmp_path)
    assert found is not None
    assert found.per_s == pytest.approx(50, rel=0.15)
    assert found.answers == len(engine.requests) - 1
    text, answer = found.example
    assert answer == "outage"
    request = engine.requests[0]
    assert request.prompt == f"Post: {text}\nThe topic of this post is"
    assert (request.model, request.sampling.max_tokens) == ("m", 1)
    own = {post(1, index, topic_of(1, index))["text"] for index in range(MAX_EVENTS)}
    asked = {str(request.prompt).removeprefix("Post: ").split("\n")[0] for request in engine.requests}
    assert len(asked & own) < len(asked) / 10, "the prefix cache would answer the demo's"


async def test_one_answer_is_enough_to_measure_a_slow_engine(tmp_path: Path) -> None:
    found = await measured(Paced(9.0, first_s=8.0, fails_from=1), tmp_path)
    assert found is not None
    assert (found.answers, found.per_s) == (1, pytest.approx(1 / 8))


@pytest.mark.parametrize("error", [AttemptTimeout("slow"), Unreachable("away")])
async def test_silent_engine_is_not_measured(tmp_path: Path, error: EngineError) -> None:
    engine = Paced(0.1, fails_from=0)
    engine.error = error
    assert await measured(engine, tmp_path) is None
    assert len(engine.requests) == 1 <= IN_FLIGHT


@given(st.floats(1e-3, 1e4))
def test_demo_is_sized_to_about_a_minute(per_s: float) -> None:
    size = fit(DemoMeasurement(1, per_s, ("", "")))
    assert MIN_EVENTS <= size.events <= MAX_EVENTS
    assert MIN_CAPACITY <= size.capacity <= MAX_CAPACITY
    assert size.events <= max(MIN_EVENTS, per_s * RUN_S)
    assert size.capacity <= max(MIN_CAPACITY, per_s * WAIT_S)


WHY = "this processor is slow"


def test_expected_duration_and_the_reason_of_slowness_are_printed() -> None:
    fast = DemoMeasurement(50, 48.4, ("The power is out.", "outage"))
    text = expectation(fast, DemoFit(300, 32, 14.2), replayed=False, slow=WHY)
    assert "about 48 posts a second here; its first answer: “The power is out.” → outage" in text
    assert "300 posts, at most 32 at a time: about 15 s, including Flink's start." in text
    assert WHY not in text
    slow = expectation(DemoMeasurement(2, 0.52, ("a", "b")), DemoFit(60, 8, 123.0), replayed=False, slow=WHY)
    assert f"about 0.5 posts a second here ({WHY})" in slow
    assert "about 2 min" in slow
    assert "at the times of your file" in expectation(fast, DemoFit(300, 32, 1.0), replayed=True, slow=WHY)


def test_engine_text_cannot_control_the_terminal() -> None:
    hostile = DemoMeasurement(50, 48.4, ("a", "\x1b[31m" + "x" * 500))
    text = expectation(hostile, DemoFit(300, 32, 14.2), replayed=False, slow=WHY)
    assert "\x1b" not in text
    assert len(text) < 300


async def test_a_chat_is_measured_with_its_schema(tmp_path: Path) -> None:
    engine = Paced(0.5)
    assert await measured(engine, tmp_path, by_likelihood=False) is not None
    assert engine.requests[0].messages[1].content.startswith("Post: ")
    assert engine.requests[0].schema is not None


def test_given_sizes_are_kept_and_unknown_engines_get_few_posts() -> None:
    given_ = fit(DemoMeasurement(1, 0.1, ("", "")), events=5000, capacity=64)
    assert (given_.events, given_.capacity) == (5000, 64)
    assert given_.seconds > 50_000
    unknown = fit(None)
    assert (unknown.events, unknown.capacity) == (MIN_EVENTS, MIN_CAPACITY)


def test_missing_answers_of_an_engine_are_reported() -> None:
    text = expectation(None, DemoFit(60, 8, 900.0), replayed=False, slow=WHY)
    assert f"answered no question in time ({WHY})" in text
    assert "60 posts" in text


def test_first_answer_is_noted_once_and_everything_is_passed_on() -> None:
    told: list[Snapshot] = []
    times = iter((12.0, 20.0))
    watch = _FirstAnswer(told.append, 10.0, lambda: next(times))
    snapshots = [Snapshot(float(n), "RUNNING", results=n) for n in range(3)]
    for snapshot in snapshots:
        watch(snapshot)
    assert watch.after_s == 2.0
    assert told == snapshots
