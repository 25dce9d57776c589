"""The scripted engine of a scenario; counts requests over all its lives."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, suppress

import psutil

from benchmarks.drill.link import Link
from benchmarks.drill.scenario import Scenario
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Mixture

ANSWER_S = 0.04
SLOTS = 2


class Engine(AbstractContextManager["Engine"]):
    """A replica behind `link`, through which the pipeline reaches it."""

    def __init__(self, scenario: Scenario) -> None:
        parts = ((1 - scenario.slow, ANSWER_S), (scenario.slow, 20 * ANSWER_S))
        self._stack = ExitStack()
        script = ReplicaScript(delay=Mixture(parts, scenario.seed), slots=SLOTS)
        self._replica = self._stack.enter_context(ReplicaProcess(script))
        self.link = Link(self._replica.port)
        self._stack.enter_context(self.link)
        self._before = 0
        self._calls = 0

    def requests(self) -> int:
        """Number of requests that have reached it."""
        with suppress(OSError):
            self._calls = sum(self._replica.report().calls.values())
        return self._before + self._calls

    def kill(self) -> None:
        self._before, self._calls = self.requests(), 0
        self._replica.kill()

    def start(self) -> None:
        self._replica.start()

    def process(self) -> psutil.Process:
        assert self._replica.pid is not None
        return psutil.Process(self._replica.pid)

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
