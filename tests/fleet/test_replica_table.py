from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.fleet.estimate import fits, prefill_s, queue_of_s, queue_s
from forebay.fleet.replica_table import MAX_BLOCKS, STALE_S, ReplicaLimits, ReplicaTable
from forebay.fleet.routing_request import InFlightRequest, RoutingRequest
from forebay.fleet.speed import PrefillSpeed
from forebay.records import ReplicaLoad

SPEED = PrefillSpeed(0.0, 0.001)


def fleet(count: int = 3, kv_tokens: float = 1e6, max_num_seqs: float = math.inf) -> ReplicaTable:
    limits = [ReplicaLimits(f"r{n}", kv_tokens, max_num_seqs) for n in range(count)]
    return ReplicaTable(limits, block_tokens=16, speed=SPEED)


def take(fleet: ReplicaTable, replica: int, demand: RoutingRequest, now_s: float) -> InFlightRequest:
    return fleet.take(replica, demand, fleet.cached(demand), now_s)


@pytest.fixture
def one() -> ReplicaTable:
    return fleet()


def test_unobserved_first_token_empties_the_queue_unlearned(one: ReplicaTable) -> None:
    seen, unseen = take(one, 0, RoutingRequest(500), 0.0), take(one, 0, RoutingRequest(500), 0.0)
    one.first_token(seen, 0.5)
    one.assume_first_token(unseen, 60.0)
    assert (one.busy[0], one.decoding[0], queue_of_s(one, 0, 60.0)) == (0, 2, 0.0)
    pace = one.pace[0]
    again = take(one, 0, RoutingRequest(500), 60.0)
    one.first_token(again, 60.5)
    assert one.pace[0] == pytest.approx(pace, rel=0.01)
    for ticket in (seen, unseen, again):
        one.finish(ticket, 61.0, 10)
    assert (one.requests[0], one.decoding[0], one.context[0]) == (0, 0, 0)


# Where sums of work are rounded below what is taken from them again.
@example(
    [
        *[(0, 0, 1)] * 9,
        (0, 0, 2),
        (0, 0, 1),
        (0, 1, 1),
        *[(2, 0, 1)] * 2,
        (0, 0, 1),
        *[(2, 0, 1)] * 8,
        (2, 2, 1),
    ]
)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 500)), max_size=60))
def test_counts_are_those_of_the_requests_in_flight(steps: list[tuple[int, int, int]]) -> None:
    one = fleet()
    waiting: list[InFlightRequest] = []
    decoding: list[InFlightRequest] = []
    for at, (kind, which, tokens) in enumerate(steps):
        now_s = at * 0.01
        if kind < 2:
            waiting.append(take(one, which, RoutingRequest(tokens), now_s))
        elif kind == 2 and waiting:
            ticket = waiting.pop(which % len(waiting))
            one.first_token(ticket, now_s)
            decoding.append(ticket)
        elif waiting or decoding:
            pool = decoding or waiting
            one.finish(pool.pop(which % len(pool)), now_s, output_tokens=which)
        for replica in range(3):
            mine = [t for t in waiting + decoding if t.replica == replica]
            assert one.requests[replica] == len(mine)
            assert one.prompts[replica] == sum(t.prompt_tokens for t in mine)
            assert one.decoding[replica] == sum(t.replica == replica for t in decoding)
            assert one.context[replica] == sum(t.prompt_tokens for t in decoding if t.replica == replica)
            assert one.busy[replica] == any(t.replica == replica for t in waiting)
            pending = sum(t.uncached for t in waiting if t.replica == replica)
            assert one.prefill_tokens[replica] == pytest.approx(pending)
            work_s = sum(t.work_s for t in waiting if t.replica == replica)
            assert one.queued_s(replica) == pytest.approx(work_s, abs=1e-9)
            assert queue_of_s(one, replica, now_s) == queue_s(one, now_s)[replica] >= 0
    for ticket in waiting + decoding:
        one.finish(ticket, 99.0)
    for values in (one.requests, one.prompts, one.decoding, one.context, one.busy, one.behind_s):
        assert values.tolist() == pytest.approx([0, 0, 0], abs=1e-9)


def test_queue_estimate_shrinks_with_progress(one: ReplicaTable) -> None:
    first = take(one, 1, RoutingRequest(1000), 10.0)
    take(one, 1, RoutingRequest(500), 10.2)
    assert queue_s(one, 10.0).tolist() == pytest.approx([0, 1.5, 0])
    assert queue_s(one, 10.4).tolist() == pytest.approx([0, 1.1, 0])
    one.first_token(first, 11.0)
    assert queue_s(one, 11.1)[1] == pytest.approx(0.4)


def test_hanging_replica_is_estimated_ever_slower(one: ReplicaTable) -> None:
    take(one, 0, RoutingRequest(1000), 0.0)
    assert queue_s(one, 1.0)[0] == pytest.approx(0.0)
    assert queue_s(one, 3.0)[0] == pytest.approx(2.0)
    assert queue_s(one, 60.0)[0] == pytest.approx(59.0)


def test_cached_tokens_cost_no_prefill(one: ReplicaTable) -> None:
    blocks = tuple(range(60))
    take(one, 2, RoutingRequest(1000, blocks), 0.0)
    demand = RoutingRequest(1000, (*blocks[:30], 777))
    cached = one.cached(demand)
    assert cached.tolist() == [0, 0, 480]
    assert prefill_s(one, demand, cached).tolist() == pytest.approx([1.0, 1.0, 0.52])
    one.restarted(2)
    assert one.cached(demand).tolist() == [0, 0, 0]


def test_fully_cached_prompt_still_costs_one_token(one: ReplicaTable) -> None:
    demand = RoutingRequest(32, (1, 2))
    take(one, 0, demand, 0.0)
    assert take(one, 0, demand, 0.0).uncached == 1.0
    assert prefill_s(one, demand, one.cached(demand))[0] == pytest.approx(0.001)


def test_slow_replica_is_detected_by_its_first_tokens() -> None:
    one = fleet(2)
    random = Random(3)
    now_s = 0.0
    for _ in range(400):
        demand = RoutingRequest(random.randint(200, 2000))
        for replica, slowness in ((0, 1.0), (1, 10.0)):
            ticket = take(one, replica, demand, now_s)
            done_s = now_s + slowness * 0.0005 * demand.prompt_tokens
            one.first_token(ticket, done_s)
            one.finish(ticket, done_s + 1, output_tokens=20)
        now_s += 20
    demand = RoutingRequest(1000)
    seconds = prefill_s(one, demand, one.cached(demand))
    assert seconds.tolist() == pytest.approx([0.5, 5.0], rel=0.1)


def test_shape_of_prefill_times_is_learned() -> None:
    one = fleet(1)
    for at in range(400):
        prompt = 100 if at % 2 else 10_000
        ticket = take(one, 0, RoutingRequest(prompt), 20.0 * at)
        one.first_token(ticket, 20.0 * at + 0.2 + 5e-5 * prompt + 4e-9 * prompt * prompt)
        one.finish(ticket, 20.0 * at + 15)
    seconds = [float(prefill_s(one, RoutingRequest(prompt), one.nothing)[0]) for prompt in (100, 10_000)]
    assert seconds == pytest.approx([0.205, 1.1], rel=0.05)


def test_first_tokens_of_one_step_are_one_sample() -> None:
    one = fleet(1)
    now_s = 0.0
    for _ in range(300):
        tickets = [take(one, 0, RoutingRequest(500), now_s) for _ in range(4)]
        now_s += 1.0
        for ticket in tickets:
            one.first_token(ticket, now_s)
            one.finish(ticket, now_s)
    demand = RoutingRequest(500)
    assert prefill_s(one, demand, one.cached(demand))[0] == pytest.approx(0.25, rel=0.05)


def test_step_time_is_that_of_the_slowest_recent_tokens() -> None:
    one = fleet(1)
    assert one.hold_s[0] == math.inf

    def answered(tpot_s: float) -> None:
        ticket = take(one, 0, RoutingRequest(10), 0.0)
        one.first_token(ticket, 1.0)
        one.finish(ticket, 1.0 + 9 * tpot_s, output_tokens=10)

    answered(0.02)
    assert one.hold_s[0] == pytest.approx(0.02)
    answered(0.1)
    assert one.hold_s[0] == pytest.approx(0.1)
    answered(0.02)
    assert 0.09 < one.hold_s[0] < 0.1
    for _ in range(1000):
        answered(0.02)
    assert one.hold_s[0] == pytest.approx(0.02, rel=0.01)


def test_fresh_reports_add_the_load_of_other_clients(one: ReplicaTable) -> None:
    mine = take(one, 1, RoutingRequest(100), 0.0)
    one.first_token(mine, 0.5)
    one.report(1, ReplicaLoad(1.0, running=5.0, waiting=3.0, kv_cache_usage=0.5))
    assert one.external.tolist() == [0, 7, 0]
    one.report(1, ReplicaLoad(0.9, running=50.0))
    assert one.external.tolist() == [0, 7, 0], "an older report than the last is passed over"
    one.forget_stale_reports(1.0 + STALE_S)
    assert one.external.tolist() == [0, 7, 0]
    one.forget_stale_reports(1.1 + STALE_S)
    assert one.external.tolist() == [0, 0, 0]
    assert one.requests.tolist() == [0, 1, 0]


def test_waiting_prompts_of_others_lengthen_a_queue() -> None:
    one = fleet(1)
    for at in range(200):
        ticket = take(one, 0, RoutingRequest(400), at)
        one.first_token(ticket, at + 0.4)
        one.finish(ticket, at + 0.8)
    one.report(0, ReplicaLoad(200.0, running=0.0, waiting=5.0))
    assert queue_s(one, 200.0)[0] == pytest.approx(
        5 * prefill_s(one, RoutingRequest(400), one.nothing)[0], rel=0.2
    )


def test_report_without_numbers_changes_nothing(one: ReplicaTable) -> None:
    one.report(0, ReplicaLoad(1.0))
    assert not np.concatenate([one.external, one.external_s, one.reported_kv]).any()


@pytest.mark.parametrize(
    ("kv_tokens", "max_num_seqs", "free"),
    [(1e6, math.inf, True), (250.0, math.inf, False), (1e6, 2, False), (1e6, 3, True)],
)
def test_request_fits_if_memory_and_slots_are_left(kv_tokens: float, max_num_seqs: float, free: bool) -> None:
    one = fleet(2, kv_tokens, max_num_seqs)
    for _ in range(2):
        take(one, 0, RoutingRequest(100), 0.0)
    assert fits(one, 100.0, 0) is free
    assert fits(one, 1e9, 1), "an idle replica may be asked for anything"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60))
def test_removed_replicas_leave_no_state(steps: list[tuple[int, int]]) -> None:
    one = fleet(0)
    here: dict[int, list[InFlightRequest]] = {}
    for at, (kind, which) in enumerate(steps):
        now_s = at * 0.1
        if kind == 0:
            number = one.add(ReplicaLimits(f"r{at}", 1e4))
            assert number not in here
            assert one.names[number] == f"r{at}"
            assert one.requests[number] == one.external[number] == one.waiting[number] == 0
            assert (one.window[number], one.prefill_slots[number]) == (math.inf, 0.0)
            assert (one.pace[number], one.hold_s[number]) == (1.0, math.inf)
            assert one.cached(RoutingRequest(32, (1, 2)))[number] == 0
            here[number] = []
        elif here and kind == 1:
            number = sorted(here)[which % len(here)]
            here[number].append(take(one, number, RoutingRequest(32, (1, 2)), now_s))
            one.report(number, ReplicaLoad(now_s, 9.0, 9.0, 0.5))
            one.set_room(number, 7.0, 3.0)
        elif here and kind == 2:
            number = sorted(here)[which % len(here)]
            for ticket in here[number]:
                one.first_token(ticket, now_s)
                one.finish(ticket, now_s, 5)
            here[number] = []
        elif here:
            number = sorted(here)[which % len(here)]
            if here[number]:
                with pytest.raises(ValueError, match="in flight"):
                    one.remove(number)
            else:
                one.remove(number)
                del here[number]
        assert sorted(one.numbers()) == sorted(here)
        assert one.count <= sum(kind == 0 for kind, _ in steps)
        assert all(len(queue) == one.count for queue in (one.requests, one.available, one.nothing))


def test_replica_at_its_limit_is_not_available() -> None:
    one = fleet(2)
    one.limit[0] = 1
    take(one, 0, RoutingRequest(10), 0.0)
    assert list(one.numbers()) == [1]


def test_overtaking_request_shows_progress() -> None:
    one = fleet(1)
    take(one, 0, RoutingRequest(1000), 0.0)
    second = take(one, 0, RoutingRequest(1000), 0.0)
    assert queue_s(one, 11.0)[0] == pytest.approx(11.0), "ten seconds late, and one behind it"
    one.first_token(second, 11.0)
    assert queue_s(one, 11.0)[0] == pytest.approx(0.0, abs=1e-9)


def test_unavailable_replicas_are_used_if_there_is_no_other() -> None:
    one = fleet(2)
    with one.without([1]):
        assert list(one.numbers()) == [0]
    assert list(one.numbers()) == [0, 1]
    one.set_available(0, False)
    with one.without([1]):
        assert list(one.numbers()) == [1]


def test_implausible_cache_size_is_ignored() -> None:
    fleet = ReplicaTable([], block_tokens=128)
    fleet.add(ReplicaLimits("a", 1e24))
    assert fleet.index._capacities == [MAX_BLOCKS]
