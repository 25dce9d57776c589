"""How a pipeline's replicas are scaled, as a value that can be pickled into a job."""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.fleet.autoscale.base import Limits, ReplicaSpeed, Scaler, ServiceClass, Timings
from forebay.fleet.autoscale.policies import DEFAULT_SCALING, ScalingSetup, make_scaling
from forebay.fleet.autoscale.speed import LearnedSpeed


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """`slo_s`: how long a record may wait until its answer begins; `other_classes`: classes of service with
    another SLO. `speed` is assumed until it is learned, `answer_tokens` until there are answers."""

    limits: Limits
    policy: str = DEFAULT_SCALING
    slo_s: float = 60.0
    timings: Timings = field(default_factory=Timings)
    speed: ReplicaSpeed = field(default_factory=lambda: ReplicaSpeed(1 / 5000, 1 / 500))
    answer_tokens: float = 64.0
    other_classes: tuple[ServiceClass, ...] = ()

    @property
    def classes(self) -> tuple[ServiceClass, ...]:
        """All classes of service, the default one first."""
        return (ServiceClass(slo_s=self.slo_s), *self.other_classes)

    def scaler(self) -> tuple[Scaler, LearnedSpeed]:
        """A new scaler, and its speed. Raises `SettingError` like `make_scaling`."""
        speed = LearnedSpeed(self.speed)
        setup = ScalingSetup(speed, self.classes, self.timings)
        return Scaler(make_scaling(self.policy, setup), speed, self.limits), speed


@dataclass(frozen=True, slots=True)
class ScalingLink:
    """An operator's part in scaling. It writes its demand to `folder`, from which the owner of the replicas
    reads it; with None it decides by itself, and its decision is a metric. `subtasks`: its parallelism.

    `queue_url`: where an operator that decides by itself reads the backlog in the source's topics; None:
    unknown. `asks_each`: each record leads to a call, so waiting ones have a cost before it is known.
    """

    settings: ScalingSettings
    folder: str | None = None
    subtasks: int = 1
    queue_url: str | None = None
    asks_each: bool = True

    @property
    def record_tokens(self) -> float:
        """Expected tokens of a record's prompt and of its answer before any are known."""
        return self.settings.answer_tokens if self.asks_each else 0.0
