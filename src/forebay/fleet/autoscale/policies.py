"""Scaling policies by name: Forebay's own and those of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from forebay.documents import suggestion
from forebay.errors import SettingError
from forebay.fleet.autoscale.base import ScalingPolicy, ServiceClass, Speed, Timings
from forebay.fleet.autoscale.capacity import PlannedCapacity
from forebay.fleet.autoscale.deadline import DeadlinePolicy
from forebay.fleet.autoscale.proportional import BatchedTokens, KvCacheUse, QueueLength
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
    """The policy of this name. Raises `SettingError` for an unknown name, and for a policy of another package
    that cannot be loaded or created."""
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
