"""How a pipeline's replicas are scaled: policies by name, picklable settings, shares of pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from forebay.documents import suggestion
from forebay.errors import SettingError
from forebay.fleet.autoscale.base import (
    ReplicaSpeed,
    Scaler,
    ScalingLimits,
    ScalingPolicy,
    ServiceClass,
    Speed,
    Timings,
)
from forebay.fleet.autoscale.deadline import DeadlinePolicy
from forebay.fleet.autoscale.learned import LearnedSpeed, ScalingMemory
from forebay.fleet.autoscale.proportional import BatchedTokens, KvCacheUse, PlannedCapacity, QueueLength
from forebay.registry import Registry, described

DEFAULT_SCALING = "deadline"


@dataclass(frozen=True, slots=True)
class ScalingSetup:
    speed: Speed
    classes: Sequence[ServiceClass] = (ServiceClass(),)
    timings: Timings = field(default_factory=Timings)


MakeScaling = Callable[[ScalingSetup], ScalingPolicy]

SCALING_POLICIES: Registry[MakeScaling] = Registry(
    what="scaling policy",
    group="forebay.scaling_policies",
    own={
        "queue": lambda _setup: QueueLength(),
        "batch": lambda _setup: BatchedTokens(),
        "kv_cache": lambda _setup: KvCacheUse(),
        "capacity": lambda setup: PlannedCapacity(setup.speed),
        "deadline": lambda setup: DeadlinePolicy(setup.speed, setup.classes, setup.timings),
    },
    expected="a class or function that creates a policy from a ScalingSetup",
    fits=callable,
)


def make_scaling(name: str, setup: ScalingSetup) -> ScalingPolicy:
    """The policy of this name. Raises `SettingError`, also for a package's policy that cannot be created."""
    make = SCALING_POLICIES.find(name)
    if make is None:
        names = SCALING_POLICIES.names()
        raise SettingError(
            f"scaling policy: expected one of {', '.join(names)}; "
            f"found {name[:80]!r}{suggestion(name, names)}"
        )
    package = SCALING_POLICIES.origin(name)
    if package is None:
        return make(setup)
    called = f"the scaling policy {name!r} of the package {package}"
    try:
        policy = make(setup)
    except Exception as error:
        raise SettingError(
            f"{called} could not be created: {type(error).__name__}: {error}; fix or uninstall it"
        ) from error
    if not callable(getattr(policy, "decide", None)):
        raise SettingError(
            f"{called}: expected a policy with a method decide, found {described(policy)}; fix the package"
        )
    return policy


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """`slo_s`: how long a record may wait until its answer begins. `speed` and `answer_tokens` hold until
    they are learned."""

    limits: ScalingLimits
    policy: str = DEFAULT_SCALING
    slo_s: float = 60.0
    timings: Timings = field(default_factory=Timings)
    speed: ReplicaSpeed = field(default_factory=lambda: ReplicaSpeed(1 / 5000, 1 / 500))
    answer_tokens: float = 64.0
    other_classes: tuple[ServiceClass, ...] = ()

    @property
    def classes(self) -> tuple[ServiceClass, ...]:
        return (ServiceClass(slo_s=self.slo_s), *self.other_classes)

    def scaler(self) -> tuple[Scaler, LearnedSpeed]:
        speed = LearnedSpeed(self.speed)
        setup = ScalingSetup(speed, self.classes, self.timings)
        return Scaler(make_scaling(self.policy, setup), speed, self.limits), speed


@dataclass(frozen=True, slots=True)
class ScalingLink:
    """An operator's part in scaling. It writes its demand to `folder`; with None it decides by itself, and
    its decision is a metric.

    `queue_url`: where it then reads the backlog in the source's topics. `asks_each`: each record leads to a
    call.
    """

    settings: ScalingSettings
    folder: str | None = None
    subtasks: int = 1
    queue_url: str | None = None
    asks_each: bool = True

    @property
    def record_tokens(self) -> float:
        return self.settings.answer_tokens if self.asks_each else 0.0


def memory_of(
    settings: ScalingSettings, model: str, parts: Mapping[str, object], policy: ScalingPolicy, speed: Speed
) -> ScalingMemory:
    return ScalingMemory(
        holds_for(settings, model), {"speed": speed, f"policy {settings.policy}": policy, **parts}
    )


def holds_for(settings: ScalingSettings, model: str) -> dict[str, str | float]:
    return {"model": model, "prompt_s": settings.speed.prompt_s, "output_s": settings.speed.output_s}


@dataclass(frozen=True, slots=True)
class Share:
    """`parts` of `of`, of all replicas and of all work."""

    parts: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= self.of:
            raise SettingError(f"share: expected at least 1 part and no more than all, found {self}")

    @property
    def whole(self) -> bool:
        return self.parts == self.of

    def __str__(self) -> str:
        return f"{self.parts} of {self.of}"

    def of_replicas(self, wanted: int) -> int:
        """Rounded up: the pools have at least `wanted` in total, and none is empty if any is wanted."""
        return -(-wanted * self.parts // self.of)

    def of_work(self, requests: float) -> float:
        return requests * self.parts / self.of


WHOLE = Share()


def shares(parts: Sequence[int]) -> tuple[Share, ...]:
    return tuple(Share(each, sum(parts)) for each in parts)


def limits_of_pools(limits: ScalingLimits, parts: Sequence[int]) -> tuple[ScalingLimits, ...]:
    """The limits of each pool: their maxima add up to that of `limits`, each at least 1."""
    if limits.ceiling < len(parts):
        raise SettingError(
            f"expected at least {len(parts)} replicas at most, one for each pool, found {limits.ceiling}"
        )
    most = _split(limits.ceiling, parts)
    # The ceiling includes the budget.
    found = replace(limits, most=limits.ceiling, budget_per_hour=None, price_per_hour=None)
    return tuple(
        replace(found, least=min(share.of_replicas(limits.least), each), most=each)
        for share, each in zip(shares(parts), most, strict=True)
    )


def _split(number: int, parts: Sequence[int]) -> list[int]:
    exact = [Fraction(number * each, sum(parts)) for each in parts]
    found = [max(int(each), 1) for each in exact]
    while sum(found) < number:
        found[max(range(len(parts)), key=lambda at: exact[at] - found[at])] += 1
    while sum(found) > number:
        found[max(range(len(parts)), key=lambda at: (found[at] > 1, found[at] - exact[at]))] -= 1
    return found
