"""The workload of every system under test: the same events, rate and engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forebay.engine import EngineFactory
from forebay.engine.client import HttpEngine
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.engine import FleetEngineFactory
from forebay.records import Event, Message, Request, Sampling
from forebay.testing.engine import ScriptedEngineFactory
from forebay.testing.script import Fixed

System = Literal["direct", "forebay", "async_function"]
SUBJECTS = (
    *("the harbour", "a power cut", "the new tram", "a lost dog"),
    *("the derby", "rain", "an exam", "bread"),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """`events` numbered from 0, at `rate_per_s` (None: as fast as they are accepted).

    `url` None: a scripted engine inside the process, with calls of `scripted_s`. `capacity`: requests in
    flight per subtask, in each system. `async_bundle_ms`: bundle time of the AsyncFunction job, in which
    every bundle ends by waiting for all its calls. `margin`: share of events at either end that is not
    counted, because a pipeline fills at the start and drains at the end. `parallelism`: subtasks, in
    `task_managers`.
    """

    events: int
    rate_per_s: float | None
    capacity: int
    url: str | None
    model: str = "fake"
    scripted_s: float = 0.05
    max_tokens: int = 16
    async_bundle_ms: int = 100
    checkpoint_s: float = 1.0
    margin: float = 0.15
    sample_memory: bool = False
    parallelism: int = 1
    task_managers: int = 1

    def engine(self) -> EngineFactory:
        if self.url is None:
            return ScriptedEngineFactory(Fixed(self.scripted_s))
        return HttpEngineFactory(self.url)

    def admitted(self) -> EngineFactory:
        """The engine as a pipeline calls it: with admission, time limits and retries."""
        if self.url is None:
            return self.engine()
        replicas = FixedReplicas((self.url,))
        return FleetEngineFactory(FleetConfig(replicas, model=self.model, capacity=self.capacity))

    def sampling(self) -> Sampling:
        # Every answer has the same length, so that all systems do the same work.
        return Sampling(max_tokens=self.max_tokens, extra={"ignore_eos": True})

    def counted(self, index: int) -> bool:
        return self.margin * self.events <= index < (1 - self.margin) * self.events


def event_id(index: int) -> str:
    """The request id of event `index`, the same in every system: a scripted replica's delays depend on it."""
    return f"event-{index}"


def prompt_of(index: int) -> str:
    """A short prompt, different for each event."""
    return f"Say what this post is about. Post {index}: all talk of {SUBJECTS[index % len(SUBJECTS)]} today."


def event_of(index: int, sent_s: float) -> Event:
    """Event `index` with the monotonic time at which its source emitted it."""
    return Event(raw=b"", fields={"i": index, "sent_s": sent_s, "text": prompt_of(index)})


def request_of(load: Workload, index: int) -> Request:
    """The request that Forebay sends for event `index`, for systems that send it themselves."""
    message = Message("user", prompt_of(index))
    return Request(event_id(index), load.model, (message,), sampling=load.sampling())


@dataclass(frozen=True, slots=True)
class HttpEngineFactory:
    url: str

    def __call__(self) -> HttpEngine:
        return HttpEngine(self.url)
