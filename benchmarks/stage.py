"""Clock and engine for measuring summaries: a simulated replica or a real one."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable
from typing import Protocol

import orjson

from forebay.apps.summaries.prompt import SummaryCall
from forebay.apps.summaries.values import tokens
from forebay.clock import SystemClock
from forebay.engine import Engine
from forebay.engine.answer import AnswerCheck
from forebay.engine.retry import RetryPolicy, complete_with_retry
from forebay.fleet.routing_request import RoutingRequest
from forebay.planning.simulate.engine import EngineModel
from forebay.planning.simulate.replica import SimRequest, SimulatedReplica
from forebay.records import JSON, Request, Sampling, Usage
from forebay.testing.answers import summarise

Answered = Callable[[JSON | None, Usage], None]
"""Receives the answer of a call (None if it failed), and its tokens."""


class Stage(Protocol):
    def waited_s(self, since_ms: float) -> float:
        """Seconds since this moment of event time."""
        ...

    def at(self, time_ms: float, do: Callable[[], None]) -> None: ...

    def ask(self, ask: SummaryCall, answered: Answered) -> None: ...

    def run(self) -> None:
        """Block until nothing is left to do."""
        ...


class SimulatedStage:
    """A simulated clock and replica; answers are the scripted summariser's."""

    def __init__(self, model: EngineModel) -> None:
        self._replica = SimulatedReplica(model)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._out: dict[SimRequest, Callable[[], None]] = {}
        self._now_s = 0.0

    def waited_s(self, since_ms: float) -> float:
        return self._now_s - since_ms / 1000

    def at(self, time_ms: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time_ms / 1000, next(self._numbers), do))

    def ask(self, ask: SummaryCall, answered: Answered) -> None:
        text = "\n".join(message.content for message in ask.messages())
        detail = summarise(text, ask.schema())
        usage = Usage(tokens(text), tokens(detail))
        sequence = SimRequest(
            next(self._numbers), self._now_s, RoutingRequest(usage.prompt_tokens), usage.completion_tokens
        )
        self._out[sequence] = lambda: answered(orjson.loads(detail), usage)
        self._replica.submit(sequence, self._now_s)

    def run(self) -> None:
        first: list[SimRequest] = []
        finished: list[SimRequest] = []
        while self._heap or self._replica.next_s < math.inf:
            if self._heap and self._heap[0][0] <= self._replica.next_s:
                due_s, _, do = heapq.heappop(self._heap)
                self._now_s = max(self._now_s, due_s)
                do()
                continue
            self._now_s = self._replica.next_s
            self._replica.fire(first, finished)
            for sequence in finished:
                self._out.pop(sequence)()
            finished.clear()
            first.clear()


class RealStage:
    """A real engine; event time passes `speed` times as fast as recorded."""

    def __init__(
        self, open_engine: Callable[[], Engine], model: str, *, speed: float, timeout_s: float
    ) -> None:
        self._open_engine = open_engine
        self._model = model
        self._speed = speed
        self._timeout_s = timeout_s
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._begin_ms = 0.0
        self._begin_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine: Engine | None = None

    def waited_s(self, since_ms: float) -> float:
        return (self._now_ms() - since_ms) / 1000 / self._speed

    def _now_ms(self) -> float:
        return self._begin_ms + (time.monotonic() - self._begin_s) * 1000 * self._speed

    def at(self, time_ms: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time_ms, next(self._numbers), do))

    def ask(self, ask: SummaryCall, answered: Answered) -> None:
        task = asyncio.get_running_loop().create_task(self._call(ask, answered))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._engine = self._open_engine()
        try:
            self._begin_ms, self._begin_s = self._heap[0][0] if self._heap else 0.0, time.monotonic()
            while self._heap or self._tasks:
                while self._heap and self._heap[0][0] <= self._now_ms():
                    heapq.heappop(self._heap)[2]()
                wait_s = 0.05
                if self._heap:
                    wait_s = min(wait_s, max(0.0, self._heap[0][0] - self._now_ms()) / 1000 / self._speed)
                await asyncio.sleep(wait_s)
        finally:
            await self._engine.close()

    async def _call(self, ask: SummaryCall, answered: Answered) -> None:
        assert self._engine is not None
        schema = ask.schema()
        number = next(self._numbers)
        request = Request(
            id=f"{ask.key}-{ask.id}-{number}",
            model=self._model,
            messages=ask.messages(),
            sampling=Sampling(max_tokens=ask.max_tokens),
            schema=schema,
        )
        outcome = await complete_with_retry(
            self._engine,
            request,
            policy=RetryPolicy(),
            timeout_s=self._timeout_s,
            deadline_s=3 * self._timeout_s,
            check=AnswerCheck(schema),
            clock=SystemClock(),
            sleep=asyncio.sleep,
        )
        usage = Usage() if outcome.completion is None else outcome.completion.usage
        answered(None if outcome.completion is None else outcome.answer, usage)
