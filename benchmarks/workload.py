"""What every system under test is given: the same events, at the same rate, for the same engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.http_engine import HttpEngineFactory
from forebay.engine import EngineFactory
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.engine import FleetEngineFactory
from forebay.records import Event, Message, Request, Sampling
from forebay.testing.engine import ScriptedEngineFactory
from forebay.testing.script import Fixed

System = Literal["direct", "forebay", "async_function"]
SUBJECTS = (
    "the harbour",
    "a power cut",
    "the new tram",
    "a lost dog",
    "the derby",
    "rain",
    "an exam",
    "bread",
)


@dataclass(frozen=True, slots=True)
class Workload:
    """`events` numbered from 0, `rate_per_s` of them each second (None: as fast as they are taken).

    `url` None: a scripted engine inside the process, each call `scripted_s` long. `capacity` bounds the
    requests in flight of each subtask, in each system alike. `async_bundle_ms`: the bundle time of
    AsyncFunction's job, where every bundle ends by waiting for all of its calls. `margin`: the share of
    events at either end that is not counted, because a pipeline fills at its begin and empties at its end.
    `parallelism` subtasks run in so many `task_managers`.
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
        """The same engine as a pipeline asks it: with its admission, time limits and retries."""
        if self.url is None:
            return self.engine()
        replicas = FixedReplicas((self.url,))
        return FleetEngineFactory(FleetConfig(replicas, model=self.model, capacity=self.capacity))

    def sampling(self) -> Sampling:
        # Every answer has the same length whatever the model says, so that systems do the same work.
        return Sampling(max_tokens=self.max_tokens, extra={"ignore_eos": True})

    def counted(self, index: int) -> bool:
        """Whether event `index` lies inside the margins."""
        return self.margin * self.events <= index < (1 - self.margin) * self.events


def event_id(index: int) -> str:
    """The request id of event `index`, the same in every system: a scripted replica's delays follow it."""
    return f"event-{index}"


def prompt_of(index: int) -> str:
    """A short prompt, different for each event."""
    return f"Say what this post is about. Post {index}: all talk of {SUBJECTS[index % len(SUBJECTS)]} today."


def event_of(index: int, sent_s: float) -> Event:
    """Event `index`, stamped with the monotonic moment at which its source gave it."""
    return Event(raw=b"", fields={"i": index, "sent_s": sent_s, "text": prompt_of(index)})


def request_of(load: Workload, index: int) -> Request:
    """What `forebay` asks for event `index`, for systems that ask by themselves."""
    message = Message("user", prompt_of(index))
    return Request(event_id(index), load.model, (message,), sampling=load.sampling())
