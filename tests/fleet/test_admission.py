from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.fleet.admission import NEVER_DUE_S, Admission, Dispatcher, ImmediateDispatcher
from forebay.fleet.policies import make_policy
from forebay.fleet.replica_table import ReplicaLimits, ReplicaTable
from forebay.fleet.routing_request import InFlightRequest, RoutingRequest
from forebay.fleet.speed import PrefillSpeed


def fleet(count: int = 1, kv_tokens: float = math.inf, hold_s: float = 0.1) -> ReplicaTable:
    """Replicas that prefill a thousand tokens a second and whose steps take a tenth of a second."""
    limits = [ReplicaLimits(f"r{n}", kv_tokens) for n in range(count)]
    one = ReplicaTable(limits, block_tokens=100, speed=PrefillSpeed(0.0, 0.001))
    one.hold_s[:] = hold_s
    return one


def names(sent: list[tuple[str, InFlightRequest]]) -> list[str]:
    return [name for name, _ in sent]


def test_replica_gets_work_for_one_more_step() -> None:
    admission: Admission[str] = Admission(fleet(hold_s=0.25))
    for name in "abcd":
        admission.add(name, RoutingRequest(100), 0.0)
    assert names(admission.ready(0.0)) == ["a", "b", "c"], "after the second, 0.2 s are queued"
    assert len(admission) == 1
    assert admission.wake_s == pytest.approx(0.05)
    assert admission.ready(0.04) == []
    assert names(admission.ready(0.051)) == ["d"]


def test_nothing_is_held_back_before_a_replicas_limit_is_known() -> None:
    admission: Admission[int] = Admission(fleet(hold_s=math.inf))
    for number in range(50):
        admission.add(number, RoutingRequest(5000), 0.0)
    assert len(admission.ready(0.0)) == 50
    assert admission.wake_s == math.inf


def test_early_first_token_makes_room() -> None:
    one = fleet()
    admission: Admission[str] = Admission(one)
    admission.add("a", RoutingRequest(1000), 0.0)
    [(_, ticket)] = admission.ready(0.0)
    admission.add("b", RoutingRequest(100), 0.1)
    assert admission.ready(0.1) == []
    assert admission.wake_s == pytest.approx(0.9)
    one.first_token(ticket, 0.4)
    assert names(admission.ready(0.4)) == ["b"]


def test_order_is_deadline_then_priority_then_arrival() -> None:
    one = fleet(hold_s=10.0)
    one.set_available(0, False)
    admission: Admission[str] = Admission(one)
    admission.add("no due moment", RoutingRequest(1), 0.0)
    admission.add("later", RoutingRequest(1, due_s=9.0), 0.0)
    admission.add("urgent second", RoutingRequest(1, due_s=5.0, priority=1), 0.0)
    admission.add("urgent third", RoutingRequest(1, due_s=5.0, priority=1), 0.0)
    admission.add("urgent first", RoutingRequest(1, due_s=5.0, priority=0), 0.0)
    admission.add("by deadline", RoutingRequest(1, deadline_s=4.0), 0.0)
    assert admission.ready(0.0) == [], "nowhere to send them"
    one.set_available(0, True)
    order = ["by deadline", "urgent first", "urgent second", "urgent third", "later", "no due moment"]
    assert names(admission.ready(0.0)) == order


def test_late_request_that_keeps_its_place_is_sent_first() -> None:
    """Otherwise a steady stream of events with time would keep waiting urgent ones back forever."""
    one = fleet()
    admission: Admission[str] = Admission(one)
    admission.add("runs", RoutingRequest(1000), 0.0)
    [(_, ticket)] = admission.ready(0.0)
    admission.add("has time", RoutingRequest(100, due_s=100.0, keeps_place=True), 0.1)
    admission.add("late", RoutingRequest(100, due_s=0.5, keeps_place=True), 0.2)
    assert admission.ready(0.3) == []
    one.first_token(ticket, 2.0)
    assert names(admission.ready(2.0)) == ["late", "has time"]


def test_requests_without_a_deadline_do_not_starve() -> None:
    admission: Admission[str] = Admission(fleet(hold_s=0.001))
    admission.add("running", RoutingRequest(1000), 0.0)
    assert names(admission.ready(0.0)) == ["running"]
    admission.add("patient", RoutingRequest(100), 0.0)
    admission.add("new", RoutingRequest(100, due_s=NEVER_DUE_S + 1), NEVER_DUE_S - 99)
    one = admission._fleet
    one.first_token(one._prefills[0].queue[0], NEVER_DUE_S - 99)
    assert names(admission.ready(NEVER_DUE_S - 99)) == ["patient"]


def test_expired_request_is_dropped_and_costs_nothing() -> None:
    one = fleet()
    admission: Admission[str] = Admission(one)
    admission.add("a", RoutingRequest(1000), 0.0)
    admission.ready(0.0)
    admission.add("b", RoutingRequest(100, deadline_s=0.5, tenant="t"), 0.0)
    admission.add("c", RoutingRequest(100, deadline_s=3.0), 0.0)
    assert admission.ready(0.5) == []
    assert admission.expired() == []
    assert names(admission.ready(0.95)) == ["c"]
    assert admission.expired() == ["b"]
    assert admission.expired() == []
    assert one.requests.tolist() == [2]


def test_expired_requests_are_dropped_without_any_replica() -> None:
    one = fleet()
    one.set_available(0, False)
    admission: Admission[str] = Admission(one)
    admission.add("a", RoutingRequest(100, deadline_s=1.0), 0.0)
    assert admission.ready(2.0) == []
    assert admission.expired() == ["a"]
    assert len(admission) == 0


def test_hopelessly_late_requests_yield_to_punctual_ones() -> None:
    admission: Admission[str] = Admission(fleet())
    admission.add("hopeless", RoutingRequest(1000, due_s=0.9), 0.0)
    admission.add("in time", RoutingRequest(1000, due_s=1.1), 0.0)
    assert names(admission.ready(0.0)) == ["in time"]
    assert names(admission.ready(0.95)) == ["hopeless"]


def test_request_waits_for_its_cached_replica_while_that_pays() -> None:
    one = fleet(2)
    admission: Admission[str] = Admission(one)
    prefix = tuple(range(10))
    one.finish(one.take(0, RoutingRequest(1000, prefix), one.nothing, 0.0), 0.0)
    one.take(0, RoutingRequest(500), one.nothing, 0.0)
    for name in "abcdef":
        admission.add(name, RoutingRequest(1200, prefix), 0.0)
    # A cached prompt takes 0.2 s behind 0.5 s, 0.7 s, 0.9 s …; elsewhere it takes 1.2 s.
    sent = admission.ready(0.0)
    assert [(name, ticket.replica) for name, ticket in sent] == [("d", 1)]
    assert len(admission) == 5


def test_noisy_tenant_does_not_starve_others() -> None:
    one = fleet(hold_s=0.05)
    admission: Admission[str] = Admission(one)
    for number in range(100):
        admission.add(f"noisy {number}", RoutingRequest(100, due_s=1000.0, tenant="noisy"), 0.0)
    [(_, ticket)] = admission.ready(0.0)
    admission.add("quiet 0", RoutingRequest(100, due_s=1000.2, tenant="quiet"), 0.0)
    admission.add("quiet 1", RoutingRequest(100, due_s=1000.2, tenant="quiet"), 0.0)
    order: list[str] = []
    for at in range(1, 7):
        one.first_token(ticket, at * 0.1)
        sent = admission.ready(at * 0.1)
        order += names(sent)
        ticket = sent[0][1] if sent else ticket
        if not sent:
            break
    assert {"quiet 0", "quiet 1"} <= set(order[:6]), order
    assert len(admission) > 90


def test_request_waits_for_memory_until_another_has_ended() -> None:
    one = fleet(kv_tokens=1000)
    admission: Admission[str] = Admission(one)
    admission.add("a", RoutingRequest(600), 0.0)
    [(_, ticket)] = admission.ready(0.0)
    one.first_token(ticket, 0.6)
    admission.add("b", RoutingRequest(600), 0.6)
    assert admission.ready(0.6) == []
    one.finish(ticket, 5.0, output_tokens=10)
    assert names(admission.ready(5.0)) == ["b"]


@st.composite
def demands(draw: st.DrawFn) -> list[tuple[float, RoutingRequest]]:
    found = []
    now_s = 0.0
    for _ in range(draw(st.integers(1, 40))):
        now_s += draw(st.sampled_from([0.0, 0.01, 0.3]))
        blocks = tuple(range(draw(st.integers(0, 5))))
        due_s = now_s + draw(st.sampled_from([0.1, 1.0, 5.0, math.inf]))
        tenant = draw(st.sampled_from([None, "a", "b"]))
        prompt = 100 * len(blocks) + draw(st.integers(1, 900))
        found.append(
            (now_s, RoutingRequest(prompt, blocks, None, due_s, math.inf, draw(st.integers(0, 2)), tenant))
        )
    return found


@pytest.mark.parametrize("kind", ["admission", "at once"])
@given(demands(), st.integers(1, 4), st.sampled_from([1200.0, 4000.0, math.inf]))
def test_each_request_is_sent_once_and_engines_do_not_idle_meanwhile(
    kind: str, coming: list[tuple[float, RoutingRequest]], count: int, kv_tokens: float
) -> None:
    one = fleet(count, kv_tokens)
    dispatcher: Dispatcher[int] = (
        Admission(one) if kind == "admission" else ImmediateDispatcher(one, make_policy("expected_ttft"))
    )
    running: list[tuple[float, bool, int, InFlightRequest]] = []
    free_s = [0.0] * count
    seen: list[int] = []
    number = 0
    while number < len(coming) or running or len(dispatcher):
        events = [coming[number][0]] if number < len(coming) else []
        events += [event[0] for event in running] + [dispatcher.wake_s]
        now_s = min(events)
        assert now_s < math.inf, "something waits and nothing will ever happen"
        while number < len(coming) and coming[number][0] <= now_s:
            dispatcher.add(number, coming[number][1], now_s)
            number += 1
        for event in sorted(e for e in running if e[0] <= now_s):
            running.remove(event)
            _, is_first, at, ticket = event
            if is_first:
                one.first_token(ticket, now_s)
                running.append((now_s + 0.5, False, at, ticket))
            else:
                one.finish(ticket, now_s, output_tokens=10)
        for at, ticket in dispatcher.ready(now_s):
            seen.append(at)
            begin_s = max(now_s, free_s[ticket.replica])
            free_s[ticket.replica] = begin_s + 0.001 * ticket.uncached
            running.append((free_s[ticket.replica], True, at, ticket))
        if len(dispatcher):
            assert one.requests.any()
    assert sorted(seen) == list(range(len(coming)))
    assert one.requests.tolist() == [0.0] * count


def test_retry_avoids_the_failed_replica_if_there_is_another() -> None:
    one = fleet(2, hold_s=1.0)
    admission: Admission[str] = Admission(one)
    admission.add("a", RoutingRequest(100, avoid=(0,)), 0.0)
    [(_, ticket)] = admission.ready(0.0)
    assert ticket.replica == 1
    one.set_available(1, False)
    admission.add("b", RoutingRequest(100, avoid=(0,)), 0.0)
    [(_, ticket)] = admission.ready(0.0)
    assert ticket.replica == 0, "there is no other"


def test_immediate_retry_avoids_the_failed_replica_too() -> None:
    dispatcher: Dispatcher[str] = ImmediateDispatcher(fleet(2), make_policy("least_requests"))
    for name in "ab":
        dispatcher.add(name, RoutingRequest(100, avoid=(0,)), 0.0)
    assert [ticket.replica for _, ticket in dispatcher.ready(0.0)] == [1, 1]


@pytest.mark.parametrize("kind", ["admission", "at once"])
def test_removed_request_is_not_sent(kind: str) -> None:
    one = fleet(hold_s=10.0)
    one.set_available(0, False)
    dispatcher: Dispatcher[str] = (
        Admission(one) if kind == "admission" else ImmediateDispatcher(one, make_policy("random"))
    )
    items = ["a", "b", "c"]
    for name in items:
        dispatcher.add(name, RoutingRequest(100, tenant=name), 0.0)
    dispatcher.remove(items[1])
    dispatcher.remove("never there")
    assert len(dispatcher) == 2
    one.set_available(0, True)
    assert names(dispatcher.ready(0.0)) == ["a", "c"]
    assert dispatcher.expired() == []


def test_concurrent_requests_have_room_whatever_their_prefill() -> None:
    one = fleet(hold_s=0.1)
    one.set_room(0, math.inf, 5)
    admission: Admission[int] = Admission(one)
    for number in range(20):
        admission.add(number, RoutingRequest(1000), 0.0)
    sent = admission.ready(0.0)
    assert [name for name, _ in sent] == [0, 1, 2, 3, 4]
    assert admission.ready(0.1) == []
    one.first_token(sent[0][1], 0.1)
    assert [name for name, _ in admission.ready(0.1)] == [5], "one of those without a first token has one"


def test_requests_in_flight_never_exceed_the_best_concurrency() -> None:
    one = fleet(hold_s=10.0)
    one.set_room(0, 3, math.inf)
    admission: Admission[int] = Admission(one)
    for number in range(20):
        admission.add(number, RoutingRequest(1), 0.0)
    sent = admission.ready(0.0)
    assert len(sent) == 3
    assert admission.wake_s == math.inf, "time alone makes no room"
    one.first_token(sent[0][1], 0.1)
    assert admission.ready(0.1) == [], "it is there still"
    one.finish(sent[0][1], 1.0, output_tokens=5)
    assert len(admission.ready(1.0)) == 1
    one.set_room(0, 5, math.inf)
    assert len(admission.ready(1.0)) == 2


def test_replica_with_room_gets_what_a_full_one_cannot_take() -> None:
    one = fleet(2, hold_s=10.0)
    one.set_room(0, 1, math.inf)
    admission: Admission[int] = Admission(one)
    for number in range(6):
        admission.add(number, RoutingRequest(100), 0.0)
    assert sorted(ticket.replica for _, ticket in admission.ready(0.0)) == [0, 1, 1, 1, 1, 1]


def test_priority_decides_among_requests_of_one_second() -> None:
    admission: Admission[str] = Admission(fleet(hold_s=10.0))
    admission.add("low", RoutingRequest(1, priority=2), 0.1)
    admission.add("high", RoutingRequest(1, priority=1), 0.2)
    admission.add("later", RoutingRequest(1, priority=0), 1.3)
    assert names(admission.ready(1.3)) == ["high", "low", "later"]


def test_reports_of_other_clients_never_stop_the_stream() -> None:
    one = fleet(hold_s=0.1)
    one.external_s[:] = 1e6
    admission: Admission[str] = Admission(one)
    for name in "ab":
        admission.add(name, RoutingRequest(100), 0.0)
    [(first, ticket)] = admission.ready(0.0)
    assert first == "a"
    one.first_token(ticket, 0.1)
    assert names(admission.ready(0.1)) == ["b"]


def test_slow_starting_replica_gets_one_request_and_the_rest_wait() -> None:
    one = fleet(hold_s=10.0)
    one.limit[0] = 1
    admission: Admission[str] = Admission(one)
    for name in "ab":
        admission.add(name, RoutingRequest(100), 0.0)
    assert names(admission.ready(0.0)) == ["a"]
    assert len(admission) == 1


def test_priority_decides_among_deadlines_of_one_second() -> None:
    admission: Admission[str] = Admission(fleet(hold_s=10.0))
    admission.add("low", RoutingRequest(1, deadline_s=300.1, priority=2), 0.0)
    admission.add("high", RoutingRequest(1, deadline_s=300.2, priority=1), 0.1)
    assert names(admission.ready(0.1)) == ["high", "low"]


def test_prompt_prefilled_elsewhere_takes_memory_but_no_prefill_time() -> None:
    one = fleet(kv_tokens=10_000.0)
    admission: Admission[str] = Admission(one)
    for name in "ab":
        admission.add(name, RoutingRequest(6000, transferred=True), 0.0)
    [(name, ticket)] = admission.ready(0.0)
    assert name == "a", "the second does not fit in addition"
    assert ticket.reserved >= 6000
    assert ticket.work_s <= 0.002


def test_a_tenants_later_requests_do_not_overtake_its_earlier_ones() -> None:
    one = fleet()
    one.set_room(0, 1, math.inf)
    admission: Admission[str] = Admission(one)
    for name in "abcd":
        admission.add(name, RoutingRequest(50, tenant="t"), 0.1)
    sent = ""
    while len(admission):
        [(name, charge)] = admission.ready(0.1)
        sent += name
        if name == "b":
            # Two wait before it; before the last of them there were three.
            admission.add("e", RoutingRequest(50, tenant="t"), 0.1)
        one.first_token(charge, 0.1)
        one.finish(charge, 0.1, 1)
    assert sent == "abcde"
