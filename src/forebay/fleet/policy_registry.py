"""Routing policies by name."""

from __future__ import annotations

from collections.abc import Callable

from forebay.errors import SettingError
from forebay.fleet.dispatch import Policy
from forebay.fleet.policies import (
    ExpectedTtft,
    LeastRequests,
    PowerOfTwo,
    RandomChoice,
    RoundRobin,
    SessionAffinity,
)
from forebay.fleet.published_policies import Aibrix, Dynamo, LlmD, Sglang

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
