from __future__ import annotations

import math

import pytest
from tests.harness.clock import ManualClock

from forebay.engine.load import ReplicaCounters
from forebay.engine.replica import HttpReplica
from forebay.errors import Overloaded
from forebay.fleet.concurrency import FIRST
from forebay.fleet.health import RULES, UNPROVEN_S, ReportCheck
from forebay.fleet.lease import ReplicaLease
from forebay.fleet.replica import Replica
from forebay.fleet.replica_table import STALE_S, ReplicaLimits, ReplicaTable
from forebay.fleet.routing_request import RoutingRequest
from forebay.fleet.speed import PrefillSpeed
from forebay.records import ReplicaLoad

BUSY = ReplicaLoad(1.0, 4.0, 2.0, 0.5)


def test_report_repeated_to_the_last_token_adds_nothing() -> None:
    check = ReportCheck()
    assert check.news(BUSY, ReplicaCounters(generation_tokens=10.0))
    assert not check.news(ReplicaLoad(2.0, 4.0, 2.0, 0.5), ReplicaCounters(generation_tokens=10.0))
    assert check.news(ReplicaLoad(3.0, 4.0, 2.0, 0.5), ReplicaCounters(generation_tokens=11.0))


def test_idle_replica_may_repeat_its_report_forever() -> None:
    check = ReportCheck()
    idle = ReplicaLoad(1.0, 0.0, 0.0, 0.0)
    assert all(check.news(idle, ReplicaCounters(1.0)) for _ in range(3))


def test_unconfirmed_claim_is_trusted_for_a_while_only() -> None:
    check = ReportCheck()
    assert check.claimed(30.0, 0.0)
    assert check.claimed(30.0, UNPROVEN_S)
    assert not check.claimed(30.0, UNPROVEN_S + 0.1)


def test_request_that_waited_as_claimed_confirms_it() -> None:
    check = ReportCheck()
    check.claimed(3.0, 0.0)
    assert not check.claimed(3.0, UNPROVEN_S + 1)
    check.first_token(claimed_s=3.0, own_s=0.1, waited_s=2.0)
    assert check.claimed(3.0, UNPROVEN_S + 2)


def test_request_that_did_not_wait_refutes_it() -> None:
    check = ReportCheck()
    assert check.claimed(3.0, 0.0)
    check.first_token(claimed_s=3.0, own_s=0.1, waited_s=0.2)
    assert not check.claimed(3.0, 0.1)


def test_small_claims_are_not_verified() -> None:
    check = ReportCheck()
    check.first_token(claimed_s=0.01, own_s=0.1, waited_s=0.0)
    assert check.claimed(0.01, 0.0)
    assert check.claimed(0.01, 1000.0)


COUNTERS = ReplicaCounters(generation_tokens=7.0)


def replica_of(fleet: ReplicaTable) -> Replica:
    replica = Replica("http://a:1", HttpReplica("http://a:1"), RULES, fleet)
    replica.row = fleet.add(ReplicaLimits(replica.url))
    return replica


@pytest.fixture
def fleet() -> ReplicaTable:
    """One that has learned that a prompt takes a tenth of a second."""
    fleet = ReplicaTable([], speed=PrefillSpeed(0.1, 0.0))
    fleet._work_s = 0.1
    return fleet


def busy(now_s: float, waiting: float = 50.0) -> ReplicaLoad:
    return ReplicaLoad(now_s, 4.0, waiting, 0.5)


def test_frozen_metrics_become_stale_although_they_are_polled(fleet: ReplicaTable) -> None:
    replica = replica_of(fleet)
    for now_s in range(5):
        replica.report(busy(now_s), COUNTERS, now_s)
        fleet.forget_stale_reports(now_s)
    assert fleet.external_s[0] == pytest.approx(5.0)
    now_s = STALE_S + 0.1
    replica.report(busy(now_s), COUNTERS, now_s)
    fleet.forget_stale_reports(now_s)
    assert (fleet.external_s[0], fleet.external[0]) == (0.0, 0.0)


def test_unconfirmed_claim_ends_although_it_changes(fleet: ReplicaTable) -> None:
    replica = replica_of(fleet)
    for second in range(int(UNPROVEN_S) + 3):
        replica.report(busy(second, 50.0 + second), COUNTERS, second)
        assert bool(fleet.external_s[0]) == (second <= UNPROVEN_S)


def test_load_header_counts_as_a_report(fleet: ReplicaTable) -> None:
    replica = replica_of(fleet)
    replica.report(busy(1.0), None, 1.0)
    assert fleet.external_s[0] == pytest.approx(5.0)


def leased(
    replica: Replica, fleet: ReplicaTable, clock: ManualClock, source: str | None = None
) -> ReplicaLease:
    demand, now_s = RoutingRequest(10), clock.monotonic_s()
    charge = fleet.take(0, demand, fleet.cached(demand), now_s)
    return ReplicaLease(replica, charge, fleet, clock, lambda _: None, source=source)


@pytest.mark.parametrize(("refused", "limit"), [("hostile", math.inf), ("honest", 1)])
def test_refusals_of_one_source_limit_no_others(fleet: ReplicaTable, refused: str, limit: float) -> None:
    replica, clock = replica_of(fleet), ManualClock()
    for lease in [leased(replica, fleet, clock, "honest") for _ in range(4)]:
        lease.first_token()
        lease.done()
    leased(replica, fleet, clock, refused).failed(Overloaded("503"))
    assert replica.refusals.most == limit


def test_overtaken_requests_do_not_make_a_replica_look_full(fleet: ReplicaTable) -> None:
    replica, clock = replica_of(fleet), ManualClock()

    hanging = [leased(replica, fleet, clock) for _ in range(FIRST - 1)]
    lease = leased(replica, fleet, clock)
    for _ in range(2):
        clock.advance(0.05)
        lease.progress()
    clock.advance(10.0)
    replica.tick(clock.monotonic_s())
    assert (replica.progress.overtaken, replica._running.limit) == (FIRST - 1, FIRST)
    hanging[0].progress()
    hanging[1].release()
    assert replica.progress.overtaken == FIRST - 3


class Sent:
    sent_s = 0.0
    source: str | None = None
    overtaken_s = math.nan

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch


def answered(replica: Replica, *, whole: bool, times: int) -> None:
    for _ in range(times):
        replica.answered(Sent(), 1.0, there=1, first=True, non_streaming=whole)


def begin(replica: Replica) -> None:
    replica.first_token(Sent(), 0.0, there=1, waiting=1, own_s=0.0, claimed_s=0.0)


def test_non_streaming_answers_do_not_show_who_waits(fleet: ReplicaTable) -> None:
    replica = replica_of(fleet)
    replica.update_room()
    assert (fleet.window[0], fleet.prefill_slots[0]) == (FIRST, FIRST)
    answered(replica, whole=True, times=1)
    assert replica._non_streaming
    assert (fleet.window[0], fleet.prefill_slots[0]) == (FIRST, math.inf)


def test_single_answer_of_another_kind_changes_nothing(fleet: ReplicaTable) -> None:
    replica = replica_of(fleet)
    answered(replica, whole=False, times=20)
    answered(replica, whole=True, times=3)
    assert not replica._non_streaming
    answered(replica, whole=True, times=30)
    assert replica._non_streaming
    answered(replica, whole=False, times=3)
    assert replica._non_streaming


def test_allowed_silence_grows_with_the_queue(fleet: ReplicaTable) -> None:
    replica = replica_of(fleet)
    assert replica.patience_s(2.0, 0.0) == 8.0, "nothing is known of its pace"
    begin(replica)
    assert replica.patience_s(2.0, 0.0) == 2.0
    for _ in range(10):
        fleet.take(0, RoutingRequest(10), fleet.nothing, 0.0)
    assert replica.patience_s(2.0, 0.0) == pytest.approx(4.0)
    replica.report(busy(1.0), None, 1.0)
    assert replica.patience_s(2.0, 0.0) == pytest.approx(4.0 + 4 * 4.0)


def test_a_replica_that_was_given_up_gets_more_time_for_a_while(fleet: ReplicaTable) -> None:
    """Otherwise slow replicas would hand each request to one another, and none would finish it."""
    replica = replica_of(fleet)
    begin(replica)
    assert replica.patience_s(15.0, 100.0) == 15.0
    replica.given_up_s = 100.0
    assert replica.patience_s(15.0, 699.0) == 60.0
    replica.given_up_s = 699.0
    assert replica.patience_s(15.0, 700.0) == 60.0, "one that hangs for good is never waited for longer"
    assert replica.patience_s(15.0, 1300.0) == 15.0


def test_replica_without_requests_shows_why(fleet: ReplicaTable) -> None:
    replica = replica_of(fleet)
    assert replica.why == "it was not asked yet"
    replica.fault = ""
    assert replica.why == ""
    replica.health.shut("it answered 503", 0.0)
    assert replica.why == "it answered 503"
    assert not replica.open(99.0)
    replica.health.probe_passed(99.0)
    assert replica.why == ""
    assert replica.open(99.0)
    replica.leaving = True
    assert replica.why == "it has left the list"
    assert not replica.open(99.0)


def test_requests_sent_before_a_close_do_not_count_as_probes(fleet: ReplicaTable) -> None:
    replica = replica_of(fleet)
    replica.fault = ""
    replica.leases |= {Sent(0), Sent(0)}  # type: ignore[arg-type]
    replica.health.shut("it answered 500", 0.0)
    assert not replica.open(99.0)
    replica.health.probe_passed(99.0)
    assert replica.open(99.0)
    replica.leases.add(Sent(1))  # type: ignore[arg-type]
    assert not replica.open(99.0), "one at a time"


def test_changing_metrics_are_a_sign_of_life(fleet: ReplicaTable) -> None:
    replica = replica_of(fleet)
    moments = [
        (1.0, ReplicaLoad(1.0, 1.0, 0.0, 0.5), COUNTERS, False),
        (2.0, ReplicaLoad(2.0, 1.0, 0.0, 0.5), COUNTERS, False),
        (3.0, ReplicaLoad(3.0, 1.0, 0.0, 0.6), COUNTERS, True),
        (4.0, ReplicaLoad(4.0, 9.0, 9.0, 0.6), COUNTERS, False),
        (5.0, ReplicaLoad(5.0, 9.0, 9.0, 0.6), ReplicaCounters(generation_tokens=8.0), True),
    ]
    for now_s, load, counters, moves in moments:
        replica.report(load, counters, now_s)
        assert (replica.progress.moved_s > now_s - 0.5) == moves, now_s


def test_non_streaming_answer_needs_changing_metrics(fleet: ReplicaTable) -> None:
    class Whole:
        ignore_silence, metrics_only, sent_s = True, True, 0.0

    replica = replica_of(fleet)
    replica.leases.add(Whole())  # type: ignore[arg-type]
    replica.report(busy(1.0), COUNTERS, 1.0)
    assert replica.silent_since_s() == math.inf, "its metrics have shown nothing yet"
    replica.report(busy(40.0), ReplicaCounters(generation_tokens=8.0), 40.0)
    assert replica.silent_since_s() == 40.0


def test_refuted_claim_extends_no_time_limit(fleet: ReplicaTable) -> None:
    replica = replica_of(fleet)
    begin(replica)
    replica.report(busy(1.0), None, 1.0)
    assert replica.patience_s(2.0, 0.0) == 20.0
    replica._reports.first_token(replica.claimed_s, own_s=0.1, waited_s=0.1)
    assert replica.patience_s(2.0, 0.0) == 2.0
