"""Routing policies by name."""

from __future__ import annotations

from collections.abc import Callable

from forebay.errors import SettingError
from forebay.fleet.base import Policy
from forebay.fleet.policies.aibrix import Aibrix
from forebay.fleet.policies.dynamo import Dynamo
from forebay.fleet.policies.expected_ttft import ExpectedTtft
from forebay.fleet.policies.least_requests import LeastRequests
from forebay.fleet.policies.llm_d import LlmD
from forebay.fleet.policies.power_of_two import PowerOfTwo
from forebay.fleet.policies.random_choice import RandomChoice
from forebay.fleet.policies.round_robin import RoundRobin
from forebay.fleet.policies.session_affinity import SessionAffinity
from forebay.fleet.policies.sglang import Sglang

DEFAULT_POLICY = "expected_ttft"

POLICIES: dict[str, Callable[[int], Policy]] = {
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
}
"""Makes each policy from the seed of its random choices, where it makes any."""


def make_policy(name: str, *, seed: int = 0) -> Policy:
    """The policy of this name. Raises `SettingError` for one that there is not."""
    try:
        return POLICIES[name](seed)
    except KeyError:
        raise SettingError(f"policy: expected one of {', '.join(POLICIES)}; found {name!r}") from None
