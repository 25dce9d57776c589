"""Routing policies by name: Forebay's own, and those of installed packages."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable

from forebay.documents.load import suggestion
from forebay.errors import ForebayError, SettingError
from forebay.fleet.admission import Policy
from forebay.fleet.policies import (
    Aibrix,
    Dynamo,
    ExpectedTtft,
    LeastRequests,
    LlmD,
    PowerOfTwo,
    RandomChoice,
    RoundRobin,
    SessionAffinity,
    Sglang,
)
from forebay.fleet.routing_request import RoutingRequest, Vector
from forebay.fleet.state import Fleet
from forebay.registry import Registry, described

log = logging.getLogger(__name__)

DEFAULT_POLICY = "expected_ttft"
MakePolicy = Callable[[int], Policy]

POLICIES: Registry[MakePolicy] = Registry(
    what="routing policy",
    group="forebay.policies",
    own={
        "random": RandomChoice,
        "round_robin": lambda _seed: RoundRobin(),
        "least_requests": lambda _seed: LeastRequests(),
        "power_of_two": PowerOfTwo,
        "session_affinity": lambda _seed: SessionAffinity(),
        "expected_ttft": lambda _seed: ExpectedTtft(),
        "sglang": lambda _seed: Sglang(),
        "aibrix": lambda _seed: Aibrix(),
        "llm_d": LlmD,
        "dynamo": lambda _seed: Dynamo(),
    },
    expected="a class or function that makes a policy of a seed",
    fits=callable,
)
"""Makes each policy from the seed of its random choices, where it makes any."""


def make_policy(name: str, *, seed: int = 0, instead: Policy | None = None) -> Policy:
    """The policy of this name.

    One of another package that raises in `choose`, or gives no replica that is available, raises
    `ForebayError` with its name; with `instead`, that one chooses then, and the log says so once. Raises
    `SettingError` for a name that there is not, and for a policy that cannot be loaded or made.
    """
    make = POLICIES.find(name)
    if make is None:
        names = POLICIES.names()
        raise SettingError(
            f"policy: expected one of {', '.join(names)}; found {name[:80]!r}{suggestion(name, names)}"
        )
    package = POLICIES.origin(name)
    if package is None:
        return make(seed)
    called = f"the routing policy {name!r} of the package {package}"
    try:
        policy = make(seed)
    except Exception as error:
        raise SettingError(
            f"{called} cannot be made with the seed {seed}: {type(error).__name__}: {error}; "
            f"mend or uninstall the package"
        ) from error
    if not callable(getattr(policy, "choose", None)):
        raise SettingError(
            f"{called}: expected a policy with a method choose, found {described(policy)}; mend the package"
        )
    return CheckedPolicy(policy, called, instead)


class CheckedPolicy:
    """A policy of another package, held to what a policy promises."""

    def __init__(self, policy: Policy, called: str, instead: Policy | None) -> None:
        self._policy = policy
        self._called = called
        self._instead = instead
        self._told = False

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        try:
            return self._chosen(demand, cached, fleet, now_s)
        except ForebayError as error:
            if self._instead is None:
                raise
            if not self._told:
                self._told = True
                log.warning("%s; Forebay chooses where it does not", error)
            return self._instead.choose(demand, cached, fleet, now_s)

    def _chosen(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        try:
            chosen = operator.index(self._policy.choose(demand, cached, fleet, now_s))
        except Exception as error:
            raise ForebayError(f"{self._called} failed: {type(error).__name__}: {error}") from error
        if not (0 <= chosen < fleet.count and fleet.available[chosen]):
            raise ForebayError(f"{self._called} chose replica {chosen}, which is not available")
        return chosen
