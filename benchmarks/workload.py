"""The workload of every system under test: the same events, rate and engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from forebay.engine import EngineFactory
from forebay.engine.client import HttpEngine
from forebay.fleet.config import FleetConfig, FleetEngineFactory
from forebay.fleet.discovery import FixedReplicas
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
    parallelism: int = 1
    task_managers: int = 1

    def engine(self) -> EngineFactory:
        if self.url is None:
            return ScriptedEngineFactory(Fixed(self.scripted_s))
        return partial(HttpEngine, self.url)

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
    return f"Say what this post is about. Post {index}: all talk of {SUBJECTS[index % len(SUBJECTS)]} today."


def event_of(index: int, sent_s: float) -> Event:
    return Event(raw=b"", fields={"i": index, "sent_s": sent_s, "text": prompt_of(index)})


def request_of(load: Workload, index: int) -> Request:
    """The request that Forebay sends for event `index`, for systems that send it themselves."""
    message = Message("user", prompt_of(index))
    return Request(event_id(index), load.model, (message,), sampling=load.sampling())


@dataclass(frozen=True, slots=True)
class Seen:
    """One answered event, in seconds on the machine's monotonic clock: when its source emitted it,
    and when its answer arrived after the operator."""

    index: int
    sent_s: float
    arrived_s: float
    called_s: float
    tokens: int

    def line(self) -> str:
        return f"{self.index} {self.sent_s!r} {self.arrived_s!r} {self.called_s!r} {self.tokens}"

    @classmethod
    def parse(cls, line: str) -> Seen:
        index, sent_s, arrived_s, called_s, tokens = line.split()
        return cls(int(index), float(sent_s), float(arrived_s), float(called_s), int(tokens))


@dataclass(frozen=True, slots=True)
class Figures:
    """One system on one workload. `checkpoint_ms_p99` is None without checkpoints.

    `added_ms`: the 0, 1, …, 100 % quantiles of the time added to an event.
    """

    events_per_s: float
    tokens_per_s: float
    added_ms_p50: float
    added_ms_p99: float
    checkpoint_ms_p99: float | None
    in_flight_mean: float
    answered: int
    checkpoints: int = 0
    added_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One completed checkpoint: its trigger time on the monotonic clock, and its duration."""

    triggered_s: float
    took_ms: int


def figures(load: Workload, seen: Iterable[Seen], checkpoints: Sequence[Checkpoint] = ()) -> Figures:
    everything = list(seen)
    counted = sorted((one for one in everything if load.counted(one.index)), key=lambda one: one.arrived_s)
    if len(counted) < 2:
        return Figures(0.0, 0.0, 0.0, 0.0, None, 0.0, len(everything))
    begin_s, end_s = counted[0].arrived_s, counted[-1].arrived_s
    if load.rate_per_s is None:
        # Slow calls of early events arrive late, and each subtask reads a part of the numbers: bound the span
        # by when most of the events arrived.
        arrivals = sorted(one.arrived_s for one in everything)
        begin_s, end_s = (quantile(arrivals, share) for share in (load.margin, 1 - load.margin))
    span_s = max(end_s - begin_s, 1e-9)
    inside = [one for one in everything if begin_s < one.arrived_s <= end_s]
    due_s = schedule(load, everything)
    added = sorted((one.arrived_s - due_s(one) - one.called_s) * 1000 for one in counted)
    took_ms = sorted(one.took_ms for one in checkpoints if begin_s <= one.triggered_s <= end_s)
    return Figures(
        events_per_s=len(inside) / span_s,
        tokens_per_s=sum(one.tokens for one in inside) / span_s,
        added_ms_p50=quantile(added, 0.5),
        added_ms_p99=quantile(added, 0.99),
        checkpoint_ms_p99=quantile(took_ms, 0.99) if took_ms else None,
        in_flight_mean=sum(one.called_s for one in inside) / span_s,
        answered=len({one.index for one in everything}),
        checkpoints=len(took_ms),
        added_ms=tuple(round(quantile(added, share / 100), 3) for share in range(101)),
    )


def schedule(load: Workload, seen: Sequence[Seen]) -> Callable[[Seen], float]:
    """When each event was due: at the workload's rate, from the earliest start that fits the
    observations."""
    rate_per_s = load.rate_per_s
    if rate_per_s is None:
        return lambda one: one.sent_s
    start_s = min(one.sent_s - one.index / rate_per_s for one in seen)
    return lambda one: start_s + one.index / rate_per_s


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest value that at least the share `q` does not exceed."""
    return ordered[max(0, -(-int(q * 1e6) * len(ordered) // 1_000_000) - 1)]
