"""A backlog of events in front of a fleet of one scripted replica, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from tests.harness.clock import LoopClock
from tests.harness.inside_replica import InsideReplica

from forebay.engine.retry import RetryPolicy, complete_with_retry
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.engine import FleetEngine
from forebay.records import Message, Request, Sampling
from forebay.testing.script import ReplicaScript


@dataclass
class Load:
    """A backlog of events in front of one replica, with a pipeline's default limits."""

    script: ReplicaScript
    capacity: int = 64
    timeout_s: float = 60.0
    deadline_s: float = 300.0
    first: int = 0
    """Number of the first event: it determines the durations of answers."""
    failed: Counter[str] = field(default_factory=Counter)
    """Dead letters by cause."""
    held: int = 0
    """Maximum number of requests at the replica since this was set to 0."""

    async def __aenter__(self) -> Load:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.replica = InsideReplica(self.script)
        config = FleetConfig(
            FixedReplicas(("http://replica",)),
            model=self.script.models[0],
            capacity=self.capacity,
            deadline_s=self.deadline_s,
        )
        self.engine = FleetEngine(config, clock=self.clock, connect=lambda _: self.replica)
        self._ids = count(self.first)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._ask()) for _ in range(self.capacity)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        failed = [task.exception() for task in self._tasks if task.done() and not task.cancelled()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engine.close()
        assert not failed

    async def _ask(self) -> None:
        while True:
            outcome = await complete_with_retry(
                self.engine,
                Request(
                    f"event {next(self._ids)}",
                    self.script.models[0],
                    (Message("user", "what is this about?"),),
                    sampling=Sampling(max_tokens=16),
                ),
                policy=RetryPolicy(),
                timeout_s=self.timeout_s,
                deadline_s=self.deadline_s,
                clock=self.clock,
            )
            if outcome.error is not None:
                self.failed[outcome.error.cause] += 1
            work = self.replica.work()
            self.held = max(self.held, work.running + work.waiting)

    async def run(self, seconds: float) -> float:
        """Goodput over `seconds`: work for answers over possible work."""
        before = self.replica.work()
        await asyncio.sleep(seconds)
        after = self.replica.work()
        useful_s = (after.spent_s - after.wasted_s) - (before.spent_s - before.wasted_s)
        return useful_s / (after.could_s - before.could_s)

    def thrown_away(self) -> float:
        """Share of calls whose answer was abandoned."""
        work = self.replica.work()
        return work.aborted / work.calls
