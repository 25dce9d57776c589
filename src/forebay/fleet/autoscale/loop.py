"""The loop between a policy and the replicas: every few seconds it gathers signals, decides, and scales.

A platform implements `ReplicaOwner`, a stream `DemandSource`. The loop reads no clock and starts nothing by
itself: its caller passes the time to `tick`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from forebay.errors import ForebayError
from forebay.fleet.autoscale.base import Backlog, Decision, Scaler, Signals, Tokens


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """The replicas at one moment.

    `starting`: seconds since the start of each booting one. `draining`: those that finish their requests and
    take no new ones. `booted_s`: durations of boots that ended since the last counts. `asked`: number
    requested last, if others share the replicas and request more.
    """

    ready: int = 0
    starting: tuple[float, ...] = ()
    draining: int = 0
    booted_s: tuple[float, ...] = ()
    asked: int | None = None


class ReplicaOwner(Protocol):
    """Starts and drains replicas: local processes, those of a cluster, simulated ones.

    Called from one thread, with a monotonic clock. Neither method waits for a replica. Both raise
    `ForebayError` if the platform does not answer or rejects a call: the loop reports it and retries.
    """

    def counts(self, now_s: float) -> ReplicaCounts: ...

    def scale(self, wanted: int, now_s: float) -> None:
        """Start or drain replicas until `wanted` are ready or booting. Called with every decision, also if
        nothing changes. A draining replica finishes its requests."""
        ...


@dataclass(frozen=True, slots=True)
class Demand:
    """The stream's fields of `Signals`. `arrived`: since the last demand. `age_s`: age of the data, infinite
    if there never was any. `wall_s`: the moment by the wall clock."""

    backlog: tuple[Backlog, ...] = ()
    arrived: tuple[tuple[str, Tokens], ...] = ()
    running: float = 0.0
    running_tokens: float = 0.0
    kv_usage: float = 0.0
    age_s: float = 0.0
    wall_s: float | None = None
    silent: int = 0


class DemandSource(Protocol):
    def take(self, now_s: float) -> Demand:
        """The demand now; each arrival is returned once."""
        ...


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """One round of the loop: signals and decision. `failure`: why the replicas could not be counted or
    scaled, or empty."""

    signals: Signals
    decision: Decision
    failure: str = ""

    @property
    def changes(self) -> bool:
        return self.decision.wanted != self.signals.kept


@dataclass(slots=True)
class ScalingLoop:
    """Calls `scaler` every `interval_s` and has `owner` scale. Passes each round to `on_step`.

    If replicas cannot be counted, nothing is decided and no demand is taken: those arrivals are in the next
    one.
    """

    scaler: Scaler
    owner: ReplicaOwner
    demand: DemandSource
    interval_s: float = 5.0
    on_step: Callable[[ScalingStep], None] = lambda step: None
    last: ScalingStep | None = None
    _due_s: float = field(default=-math.inf, init=False)

    def tick(self, now_s: float) -> ScalingStep | None:
        """Run the round that is due at `now_s`, or return None. A late round runs once."""
        if now_s < self._due_s:
            return None
        self._due_s = now_s + self.interval_s
        self.last = step = self._round(now_s)
        self.on_step(step)
        return step

    def _round(self, now_s: float) -> ScalingStep:
        try:
            counts = self.owner.counts(now_s)
        except ForebayError as error:
            before = self.last
            signals = Signals(now_s) if before is None else before.signals
            return ScalingStep(
                signals, Decision(signals.kept, "the number of replicas is unknown"), str(error)
            )
        signals = signals_of(now_s, counts, self.demand.take(now_s))
        decision = self.scaler.decide(signals)
        try:
            self.owner.scale(decision.wanted, now_s)
        except ForebayError as error:
            return ScalingStep(signals, decision, str(error))
        return ScalingStep(signals, decision)


def signals_of(now_s: float, counts: ReplicaCounts, demand: Demand) -> Signals:
    return Signals(
        now_s=now_s,
        ready=counts.ready,
        starting=counts.starting,
        draining=counts.draining,
        booted_s=counts.booted_s,
        backlog=demand.backlog,
        arrived=demand.arrived,
        running=demand.running,
        running_tokens=demand.running_tokens,
        kv_usage=demand.kv_usage,
        age_s=demand.age_s,
        wall_s=demand.wall_s,
        silent=demand.silent,
        asked=counts.asked,
    )
