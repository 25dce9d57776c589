"""How a pipeline's replicas are scaled, as a value that can be pickled into a job."""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.autoscale.base import Limits, ReplicaSpeed, Scaler, ServiceClass, Timings
from forebay.autoscale.policies import DEFAULT_SCALING, ScalingSetup, make_scaling
from forebay.autoscale.speed import LearnedSpeed


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """`slo_s`: how long a record may wait until its answer begins; `other_classes`: classes of service for
    which that is another time. `speed` is what is assumed of a replica until it is known better,
    `answer_tokens` what is expected of an answer until one has come."""

    limits: Limits
    policy: str = DEFAULT_SCALING
    slo_s: float = 60.0
    timings: Timings = field(default_factory=Timings)
    speed: ReplicaSpeed = field(default_factory=lambda: ReplicaSpeed(1 / 5000, 1 / 500))
    answer_tokens: float = 64.0
    other_classes: tuple[ServiceClass, ...] = ()

    @property
    def classes(self) -> tuple[ServiceClass, ...]:
        """All classes of service, that of all other records first."""
        return (ServiceClass(slo_s=self.slo_s), *self.other_classes)

    def scaler(self) -> tuple[Scaler, LearnedSpeed]:
        """A fresh scaler, and the speed that it goes by. Raises `SettingError` as `make_scaling`."""
        speed = LearnedSpeed(self.speed)
        setup = ScalingSetup(speed, self.classes, self.timings)
        return Scaler(make_scaling(self.policy, setup), speed, self.limits), speed


@dataclass(frozen=True, slots=True)
class ScalingLink:
    """How an operator takes part. It writes its demand to `folder`, where whoever owns the replicas reads it;
    with None it decides by itself, and what it wants is a metric. `subtasks`: how many of it there are.

    `queue_url`: where one that decides by itself hears what waits in the source's topics; None: nothing is
    known of that. `asks_each`: each record leads to a call, so that those that wait cost something before it
    is known what."""

    settings: ScalingSettings
    folder: str | None = None
    subtasks: int = 1
    queue_url: str | None = None
    asks_each: bool = True

    @property
    def record_tokens(self) -> float:
        """What is expected of a record's prompt and of its answer before it is known."""
        return self.settings.answer_tokens if self.asks_each else 0.0
