"""Several controllers: at most one scales at a time, and soon one does."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock

from forebay.deploy.controller.cluster import (
    LENGTH_S,
    RENEW_S,
    ClusterCalls,
    DeploymentChanged,
    Leadership,
    LeaseState,
)
from forebay.errors import DeployError


class Leases:
    """One Lease, like in the API server: each write names the version that it replaces."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] | None = None
        self.version = 0
        self.away = False
        self.writes = 0

    def lease(self, name: str) -> LeaseState | None:
        assert name == "engine-autoscale"
        if self.away:
            raise DeployError("the API server does not answer")
        if self.spec is None:
            return None
        return LeaseState.parse({"metadata": {"resourceVersion": self.version}, "spec": self.spec})

    def write_lease(self, name: str, found: LeaseState | None, spec: dict[str, Any]) -> None:
        if self.away:
            raise DeployError("the API server does not answer")
        if (None if found is None else found.version) != (None if self.spec is None else str(self.version)):
            raise DeploymentChanged("the object has been modified")
        self.spec = {**(self.spec or {}), **spec}
        self.version += 1
        self.writes += 1


def leadership(leases: Leases, identity: str, clock: ManualClock) -> Leadership:
    return Leadership(cast(ClusterCalls, leases), "engine-autoscale", identity, clock)


def held(each: Leadership) -> bool:
    try:
        return each.held()
    except DeployError:
        return False


def test_first_controller_holds_the_lease_and_writes_rarely() -> None:
    leases, clock = Leases(), ManualClock()
    one, two = leadership(leases, "one", clock), leadership(leases, "two", clock)
    for _ in range(10):
        assert (one.held(), two.held()) == (True, False)
        clock.advance(RENEW_S / 2)
    assert two.holder == "one"
    assert leases.writes == 5
    assert leases.spec is not None
    assert leases.spec["leaseTransitions"] == 0


def test_silent_holder_is_replaced_for_good() -> None:
    leases, clock = Leases(), ManualClock()
    one, two = leadership(leases, "one", clock), leadership(leases, "two", clock)
    assert (one.held(), two.held()) == (True, False)
    clock.advance(LENGTH_S)
    assert not two.held()
    clock.advance(0.1)
    assert two.held()
    assert not one.held()
    assert leases.spec is not None
    assert (leases.spec["holderIdentity"], leases.spec["leaseTransitions"]) == ("two", 1)


def test_ended_holder_releases_only_its_own_lease() -> None:
    leases, clock = Leases(), ManualClock()
    one, two = leadership(leases, "one", clock), leadership(leases, "two", clock)
    assert (one.held(), two.held()) == (True, False)
    two.release()
    assert not two.held()
    one.release()
    assert two.held()
    one.release()
    assert leases.spec is not None
    assert leases.spec["holderIdentity"] == "two"


def test_one_of_two_simultaneous_acquisitions_fails() -> None:
    leases, clock = Leases(), ManualClock()
    one = leadership(leases, "one", clock)
    find = leases.lease

    def taken_meanwhile(name: str) -> LeaseState | None:
        found = find(name)
        leases.write_lease(name, found, {"holderIdentity": "two"})
        return found

    leases.lease = taken_meanwhile  # type: ignore[method-assign]
    with pytest.raises(DeploymentChanged):
        one.held()
    leases.lease = find  # type: ignore[method-assign]
    assert not one.held()


STEPS = st.lists(st.tuples(st.sampled_from(("one", "two", "away", "back", "wait")), st.floats(0, 20)))


@given(STEPS)
def test_never_two_holders_and_always_one_in_the_end(steps: list[tuple[str, float]]) -> None:
    """Each asks before it acts. A holder has it for at least `LENGTH_S` less `RENEW_S`."""
    leases, clock = Leases(), ManualClock()
    every = {name: leadership(leases, name, clock) for name in ("one", "two")}
    sure: dict[str, float] = {}
    for name, seconds in steps:
        clock.advance(seconds)
        if name in every:
            if held(every[name]):
                now_s = clock.monotonic_s()
                assert all(now_s > until_s for other, until_s in sure.items() if other != name)
                sure = {**sure, name: now_s + LENGTH_S - RENEW_S}
        else:
            leases.away = name == "away" or (leases.away and name == "wait")
    leases.away = False
    for _ in range(3):
        answers = [held(each) for each in every.values()]
        clock.advance(LENGTH_S)
    assert sum(answers) == 1


WRONG_SPEC = {"metadata": {"resourceVersion": 1}, "spec": {"leaseTransitions": "x"}}


@pytest.mark.parametrize("wrong", [{}, {"metadata": {}}, {"metadata": 1}, WRONG_SPEC])
def test_invalid_lease_is_one_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(DeployError, match="has an unknown format"):
        LeaseState.parse(wrong)
