"""The loop between a policy and the replicas: every few seconds it gathers the signals, asks, and acts.

Whoever owns replicas, on whatever platform, is a `ReplicaOwner`; whoever knows the stream is a
`DemandSource`. The loop reads no clock and starts nothing by itself: its caller passes the time to `tick`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from forebay.autoscale.base import Backlog, Decision, Scaler, Signals, Tokens
from forebay.errors import ForebayError


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """The replicas at one moment.

    `starting`: for each that boots, the seconds since it was started. `draining`: those that finish their
    requests and take no new ones. `booted_s`: how long each boot took that ended since the last counts.
    `asked`: how many were asked for last, if others share them and ask for theirs.
    """

    ready: int = 0
    starting: tuple[float, ...] = ()
    draining: int = 0
    booted_s: tuple[float, ...] = ()
    asked: int | None = None


class ReplicaOwner(Protocol):
    """Starts and drains replicas: local processes, those of a cluster, simulated ones.

    Called from one thread, with a clock that only goes forward. Neither method waits for a replica. Both
    raise `ForebayError` where the platform does not answer or refuses: the loop says so and asks again.
    """

    def counts(self, now_s: float) -> ReplicaCounts:
        """What there is now."""
        ...

    def scale(self, wanted: int, now_s: float) -> None:
        """Start or drain replicas until `wanted` serve or boot. Called with every decision: where so many do
        already, nothing happens. A replica that drains finishes its requests."""
        ...


@dataclass(frozen=True, slots=True)
class Demand:
    """What is known of the stream: the fields of `Signals` that replicas do not tell. `arrived` is what came
    since the last demand; `age_s` is how old all of this is, infinite where nothing was ever heard; `wall_s`
    is the moment by the wall clock."""

    backlog: tuple[Backlog, ...] = ()
    arrived: tuple[tuple[str, Tokens], ...] = ()
    running: float = 0.0
    running_tokens: float = 0.0
    kv_usage: float = 0.0
    age_s: float = 0.0
    wall_s: float | None = None
    silent: int = 0


class DemandSource(Protocol):
    """Knows the stream."""

    def take(self, now_s: float) -> Demand:
        """The demand now; what arrived is told once."""
        ...


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """One round of the loop: what was seen, what was decided. `failure` says why the replicas could not be
    counted or scaled; empty where they were."""

    signals: Signals
    decision: Decision
    failure: str = ""

    @property
    def changes(self) -> bool:
        """Whether replicas are started or taken away."""
        return self.decision.wanted != self.signals.kept


@dataclass(slots=True)
class ScalingLoop:
    """Asks `scaler` every `interval_s` and has `owner` act on it. Each round is told to `on_step`.

    Where replicas cannot be counted, nothing is decided, and the demand is not asked for: what arrives
    meanwhile is in the next one.
    """

    scaler: Scaler
    owner: ReplicaOwner
    demand: DemandSource
    interval_s: float = 5.0
    on_step: Callable[[ScalingStep], None] = lambda step: None
    last: ScalingStep | None = None
    _due_s: float = field(default=-math.inf, init=False)

    def tick(self, now_s: float) -> ScalingStep | None:
        """Make the round that is due at `now_s`; None where none is. A round that comes late is made once."""
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
            return ScalingStep(signals, Decision(signals.kept, "replicas are not known"), str(error))
        signals = signals_of(now_s, counts, self.demand.take(now_s))
        decision = self.scaler.decide(signals)
        try:
            self.owner.scale(decision.wanted, now_s)
        except ForebayError as error:
            return ScalingStep(signals, decision, str(error))
        return ScalingStep(signals, decision)


def signals_of(now_s: float, counts: ReplicaCounts, demand: Demand) -> Signals:
    """What a policy sees."""
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
