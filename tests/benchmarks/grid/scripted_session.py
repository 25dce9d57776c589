"""Replaces a pipeline: answers each event at a set time after it was due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import orjson

from forebay.bench.records import EngineSample
from forebay.bench.stream.events import EventLoad
from forebay.bench.stream.records import EventRecord, MeasuredCheckpoint, StreamRun

ANSWER_S, COMMIT_S = 0.5, 1.25


class ScriptedSession:
    """Records loads and events."""

    def __init__(self) -> None:
        self.loads: list[EventLoad] = []
        self.events: list[list[dict[str, Any]]] = []

    def measure(self, load: EventLoad) -> StreamRun:
        self.loads.append(load)
        assert load.data is not None
        self.events.append([orjson.loads(line) for line in load.data.read_bytes().splitlines()])
        due_s = load.schedule.due_s(load.events, Random(load.seed))
        records = tuple(
            EventRecord(
                index=index,
                id=f"e{index}",
                due_s=at_s,
                free_s=at_s,
                emitted_s=at_s,
                read_s=at_s,
                accepted_s=at_s,
                sent_s=at_s + 0.1,
                first_token_s=at_s + 0.2,
                answered_s=at_s + ANSWER_S,
                left_s=at_s + ANSWER_S,
                committed_s=at_s + COMMIT_S,
                results=1,
                attempts=1,
                prompt_tokens=4,
                completion_tokens=2,
            )
            for index, at_s in enumerate(due_s)
        )
        values = {"running": 3.0, "preemptions": 2.0, "run_cores": 0.25}
        return StreamRun(
            began_at="2026-01-01T00:00:00+00:00",
            duration_s=due_s[-1] + COMMIT_S,
            asked={"schedule": load.schedule.asked()},
            events=records,
            checkpoints=(MeasuredCheckpoint(1, 0.5, 0.02, 1000, 500),),
            samples=(EngineSample(0.1, values), EngineSample(0.2, {**values, "preemptions": 7.0})),
            complete=True,
        )


class ScriptedPipelines:
    def __init__(self) -> None:
        self.opened: list[tuple[Any, ...]] = []
        self.sessions: list[ScriptedSession] = []

    @contextmanager
    def __call__(self, *asked: Any) -> Iterator[ScriptedSession]:
        self.opened.append(asked)
        self.sessions.append(ScriptedSession())
        yield self.sessions[-1]
