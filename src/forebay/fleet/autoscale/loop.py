"""Every few seconds, gather signals, decide, and scale."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Protocol

from pydantic import Field, TypeAdapter

from forebay.errors import ForebayError
from forebay.fleet.autoscale.base import Backlog, Decision, Scaler, Signals, Tokens


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """The replicas at one moment.

    `starting`: seconds since the start of each booting one. `booted_s`: durations of boots that ended since
    the last counts. `asked`: as in `Signals`.
    """

    ready: int = 0
    starting: tuple[float, ...] = ()
    draining: int = 0
    booted_s: tuple[float, ...] = ()
    asked: int | None = None


class ReplicaOwner(Protocol):
    """Starts and drains replicas. Called from one thread, with a monotonic clock; never waits for a replica.

    Both raise `ForebayError` if the platform does not answer or rejects a call: the loop reports it and
    retries.
    """

    def counts(self, now_s: float) -> ReplicaCounts: ...

    def scale(self, wanted: int, now_s: float) -> None:
        """Start or drain until `wanted` are ready or booting. Called with every decision, also if nothing
        changes."""
        ...


@dataclass(frozen=True, slots=True)
class Demand:
    """The stream's fields of `Signals`. `age_s`: infinite if there never was any data."""

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
    """Signals and decision of one round. `failure`: why the replicas could not be counted or scaled."""

    signals: Signals
    decision: Decision
    failure: str = ""


@dataclass(slots=True)
class ScalingLoop:
    """Calls `scaler` every `interval_s`, has `owner` scale, and passes each round to `on_step`.

    If replicas cannot be counted, nothing is decided and no demand is taken.
    """

    scaler: Scaler
    owner: ReplicaOwner
    demand: DemandSource
    interval_s: float = 5.0
    on_step: Callable[[ScalingStep], None] = lambda step: None
    last: ScalingStep | None = None
    _due_s: float = field(default=-math.inf, init=False)

    def tick(self, now_s: float) -> ScalingStep | None:
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


CHANGES_S = 10.0
FAILURES_S = 60.0


@dataclass(slots=True)
class StepLog:
    """An `on_step` that logs changes at most every 10 seconds (INFO) and failures every minute (WARNING)."""

    log: logging.Logger
    _logged: int | None = field(default=None, init=False)
    _logged_s: float = field(default=-math.inf, init=False)
    _warned_s: float = field(default=-math.inf, init=False)

    def __call__(self, step: ScalingStep) -> None:
        now_s, decision, signals = step.signals.now_s, step.decision, step.signals
        problem = step.failure or (decision.reason if decision.failed else "")
        if problem:
            if now_s - self._warned_s >= FAILURES_S:
                self._warned_s = now_s
                self.log.warning("replicas could not be scaled as decided: %s", problem)
        elif decision.wanted != self._logged and now_s - self._logged_s >= CHANGES_S:
            before = "" if self._logged is None else f" in place of {self._logged}"
            self._logged, self._logged_s = decision.wanted, now_s
            self.log.info(
                "%d replicas are wanted%s, %d are ready, %d start: %s",
                decision.wanted,
                before,
                signals.ready,
                len(signals.starting),
                decision.reason,
            )


PATIENCE = 3.0
"""In known boots: a replica that takes longer is not being started, for example because of a quota."""
MIN_BOOT_S = 60.0
LEARNED = 0.5


@dataclass(frozen=True, slots=True)
class BootMemory:
    boot_s: Annotated[float, Field(ge=0, le=1e7, allow_inf_nan=False)]


_BOOT_MEMORY: TypeAdapter[BootMemory] = TypeAdapter(BootMemory)


class PublishedReplicas:
    """A `ReplicaOwner` that passes the wanted number to `publish` and sees only how many are `ready`.

    Other wanted replicas count as starting for several known boots (at first `boot_s`): the platform may have
    no room. There may be more than were requested here, as for a gateway that shares them.
    """

    def __init__(self, ready: Callable[[], int], publish: Callable[[int], None], boot_s: float) -> None:
        self._ready = ready
        self._publish = publish
        self._boot_s = boot_s
        self._asked_s: list[float] = []
        self._was_ready: int | None = None
        self._asked: int | None = None

    def remembers(self) -> Mapping[str, object]:
        return asdict(BootMemory(self._boot_s))

    def recall(self, memory: Mapping[str, object]) -> None:
        self._boot_s = _BOOT_MEMORY.validate_python(memory).boot_s

    def counts(self, now_s: float) -> ReplicaCounts:
        ready = self._ready()
        came = 0 if self._was_ready is None else max(ready - self._was_ready, 0)
        self._was_ready = ready
        patience_s = PATIENCE * max(self._boot_s, MIN_BOOT_S)
        late = [at_s for at_s in self._asked_s if now_s - at_s > patience_s]
        awaited = self._asked_s[len(late) :]
        booted_s = tuple(min(now_s - at_s, patience_s) for at_s in (awaited + late)[:came])
        awaited, late = awaited[came:], late[max(came - len(awaited), 0) :]
        self._asked_s = late + awaited
        for took_s in booted_s:
            self._boot_s += LEARNED * (took_s - self._boot_s)
        starting = tuple(now_s - at_s for at_s in awaited)
        return ReplicaCounts(ready, starting, booted_s=booted_s, asked=self._asked)

    def scale(self, wanted: int, now_s: float) -> None:
        missing = max(wanted - (self._was_ready or 0), 0)
        del self._asked_s[missing:]
        self._asked_s += [now_s] * (missing - len(self._asked_s))
        self._asked = wanted
        self._publish(wanted)
