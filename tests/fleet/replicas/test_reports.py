"""Reports of load, held against what own requests see."""

from __future__ import annotations

from forebay.engine.load import ReplicaCounters
from forebay.fleet.replicas.reports import UNPROVEN_S, ReportCheck
from forebay.records import ReplicaLoad

BUSY = ReplicaLoad(1.0, 4.0, 2.0, 0.5)


def test_a_busy_replica_that_repeats_itself_to_the_last_token_tells_nothing_new() -> None:
    check = ReportCheck()
    assert check.news(BUSY, ReplicaCounters(generation_tokens=10.0))
    assert not check.news(ReplicaLoad(2.0, 4.0, 2.0, 0.5), ReplicaCounters(generation_tokens=10.0))
    assert check.news(ReplicaLoad(3.0, 4.0, 2.0, 0.5), ReplicaCounters(generation_tokens=11.0))


def test_an_idle_one_may_say_the_same_for_ever() -> None:
    check = ReportCheck()
    idle = ReplicaLoad(1.0, 0.0, 0.0, 0.0)
    assert all(check.news(idle, ReplicaCounters(1.0)) for _ in range(3))


def test_a_claim_that_nothing_bears_out_is_believed_for_a_while_only() -> None:
    check = ReportCheck()
    assert check.claimed(30.0, 0.0)
    assert check.claimed(30.0, UNPROVEN_S)
    assert not check.claimed(30.0, UNPROVEN_S + 0.1)


def test_a_request_that_waited_as_claimed_bears_it_out() -> None:
    check = ReportCheck()
    check.claimed(3.0, 0.0)
    assert not check.claimed(3.0, UNPROVEN_S + 1)
    check.first_token(claimed_s=3.0, own_s=0.1, waited_s=2.0)
    assert check.claimed(3.0, UNPROVEN_S + 2)


def test_one_that_did_not_wait_refutes_it() -> None:
    check = ReportCheck()
    assert check.claimed(3.0, 0.0)
    check.first_token(claimed_s=3.0, own_s=0.1, waited_s=0.2)
    assert not check.claimed(3.0, 0.1)


def test_small_claims_are_not_looked_into() -> None:
    check = ReportCheck()
    check.first_token(claimed_s=0.01, own_s=0.1, waited_s=0.0)
    assert check.claimed(0.01, 0.0)
    assert check.claimed(0.01, 1000.0)
