"""A queue with a known capacity, instead of a pipeline."""

from __future__ import annotations

from heapq import heapify, heapreplace
from random import Random

from tests.bench.stream.stream_runs import stream_run

from forebay.bench.load.schedules import Poisson
from forebay.bench.stream.events import EventLoad, due_offsets
from forebay.bench.stream.records import EventRecord, StreamRun


class SimulatedQueue:
    """First come, first served, with `slots` servers; a service takes one second on average, so the
    capacity is `slots` events per second."""

    def __init__(self, slots: int, dice: Random) -> None:
        self.slots = slots
        self.events = 0
        self._dice = dice

    def done_s(self, due_s: list[float]) -> list[float]:
        free_s = [0.0] * self.slots
        heapify(free_s)
        done = []
        for at_s in due_s:
            done.append(max(at_s, free_s[0]) + self._dice.expovariate(1.0))
            heapreplace(free_s, done[-1])
        return done

    def load(self, rate_per_s: float, number: int = 0, times: float = 1.0) -> EventLoad:
        events = max(100, round(20 * times * rate_per_s))
        return EventLoad(schedule=Poisson(rate_per_s), events=events, seed=self._dice.getrandbits(32))

    def measure(self, load: EventLoad) -> StreamRun:
        due_s = due_offsets(load)
        self.events += len(due_s)
        events = [
            EventRecord(
                index, "", at_s, free_s=at_s, emitted_s=at_s, answered_s=done_s, committed_s=done_s, results=1
            )
            for index, (at_s, done_s) in enumerate(zip(due_s, self.done_s(due_s), strict=True))
        ]
        return stream_run(events)

    def settle(self, timeout_s: float) -> bool:
        return True
