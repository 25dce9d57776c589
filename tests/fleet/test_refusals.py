from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.harness.backlog import Load
from tests.harness.clock import in_virtual_time, run_virtual

from forebay.engine.replica import HttpReplica
from forebay.errors import Overloaded, RateLimited
from forebay.fleet.health import RULES
from forebay.fleet.refusals import CALLS, IGNORE_S, MAX_ROUNDS, PROOF, ROUNDS, Refusals
from forebay.fleet.replica import EXCUSED_S, FIRST_PAUSE_S, MAX_PAUSE_S, Replica
from forebay.fleet.replica_table import ReplicaTable
from forebay.testing.script import Faults, Mixture, ReplicaScript

SLOTS = 4
BOUND_S = 3.0
"""Maximum time that a place stays free while requests wait: the pause of a 429, and some calls."""


def answer(refusals: Refusals, there: int, times: int, now_s: float) -> None:
    for _ in range(times):
        refusals.answered(there, now_s, now_s)


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


def test_replica_that_never_refuses_gets_everything(refusals: Refusals) -> None:
    answer(refusals, 64, 100, 1.0)
    assert refusals.most == math.inf


def test_first_refusal_shows_the_limit(refusals: Refusals) -> None:
    assert refusals.refused(4, 0.0, 0.1, 2.0) == "one too many"
    assert refusals.most == 4


def test_simultaneous_refusals_count_as_one_try(refusals: Refusals) -> None:
    for others in (7, 6, 5, 4):
        assert refusals.refused(others, 0.0, 0.1, 0.0) == "one too many"
    assert refusals.most == 4
    answer(refusals, 4, 2 * ROUNDS * 4, 1.0)
    assert refusals.most == 5


def probe(refusals: Refusals, now_s: float) -> int:
    answers, most = 0, refusals.most
    while refusals.most == most:
        answer(refusals, int(most), 1, now_s)
        answers += 1
    return answers


def test_each_refusal_doubles_the_rounds_before_one_more_is_tried(refusals: Refusals) -> None:
    refusals.refused(4, 0.0, 0.1, 0.0)
    rounds = []
    for trial in range(8):
        now_s = 1.0 + trial
        rounds.append(probe(refusals, now_s) / 4)
        assert refusals.refused(4, now_s + 0.1, now_s + 0.2, 0.0) == "one too many"
        assert refusals.most == 4
    assert rounds == [4, 8, 16, 32, 64, 64, 64, 64]
    assert (rounds[0], rounds[-1]) == (2 * ROUNDS, MAX_ROUNDS)


def test_accepted_trial_raises_the_limit_by_one_each_round(refusals: Refusals) -> None:
    refusals.refused(4, 0.0, 0.1, 0.0)
    for trial in range(4):
        probe(refusals, 1.0 + trial)
        refusals.refused(4, 1.1 + trial, 1.2 + trial, 0.0)
    probe(refusals, 9.0)
    assert [probe(refusals, 9.0) for _ in range(3)] == [5, 6, 7]
    refusals.refused(7, 9.1, 9.2, 0.0)
    assert probe(refusals, 10.0) == 2 * ROUNDS * 7, "and it starts again"


def test_one_more_is_tried_only_when_full_and_after_retry_after(refusals: Refusals) -> None:
    refusals.refused(4, 0.0, 0.1, 2.0)
    answer(refusals, 4, 1000, 2.0)
    answer(refusals, 3, 1000, 9.0)
    assert refusals.most == 4
    answer(refusals, 4, 1, 2.1)
    assert refusals.most == 5


def test_requests_sent_before_the_refusal_do_not_count(refusals: Refusals) -> None:
    refusals.refused(4, 0.0, 0.1, 0.0)
    for _ in range(100):
        refusals.answered(5, 0.0, 1.0)
    assert refusals.most == 4


def proven(most: int) -> Refusals:
    """Refusals of a replica that refused one more than `most`, and proved to take `most`."""
    refusals = Refusals()
    refusals.refused(most, 0.0, 0.1, 0.0)
    answer(refusals, most, PROOF, 1.0)
    return refusals


def test_single_refusal_below_the_known_limit_changes_nothing() -> None:
    refusals = proven(40)
    assert refusals.refused(20, 1.1, 1.2, 2.0) == "passing"
    assert refusals.most == 40


def test_repeated_refusals_below_the_limit_shut_and_lower_it() -> None:
    refusals = proven(40)
    kinds = []
    for at in range(6):
        others = min(30, int(refusals.most) - 1)
        kinds.append(refusals.refused(others, 2.0 + at, 2.1 + at, 2.0))
    assert kinds == ["passing"] * 3 + ["shut"] * 3, "a quarter of the last 16 or so"
    assert refusals.most == 28


def known_to_take(there: int, source: str) -> Refusals:
    """A replica whose last requests, `there` at a time, were answered to `source`."""
    refusals = Refusals()
    for _ in range(PROOF):
        refusals.answered(there, 0.0, 0.0, source)
    return refusals


@pytest.mark.parametrize("others", [0, 1, 7])
def test_refusals_of_one_source_do_not_limit_others(others: int) -> None:
    refusals = known_to_take(8, "honest")
    for number in range(CALLS):
        assert refusals.refused(others, number, number + 0.1, 0.0, "hostile") == "passing"
        assert refusals.most == math.inf


def test_refusal_of_a_second_source_counts() -> None:
    refusals = known_to_take(8, "honest")
    assert refusals.refused(0, 1.0, 1.1, 0.0, "hostile") == "passing"
    assert refusals.refused(0, 2.0, 2.1, 0.0, "honest") == "shut"


def test_refusals_of_one_source_count_if_no_other_is_answered() -> None:
    refusals = known_to_take(8, "silent")
    kinds = [refusals.refused(3, number, number + 0.1, 0.0, "only") for number in range(CALLS + 1)]
    assert kinds == ["passing"] * CALLS + ["one too many"]


def test_refusals_of_requests_sent_together_count_once() -> None:
    refusals = known_to_take(8, "honest")
    kinds = {refusals.refused(0, 1.0, 1.1, 0.0, "hostile") for _ in range(3 * CALLS)}
    assert kinds == {"passing"}


def test_alternating_refusals_of_two_sources_count() -> None:
    refusals = known_to_take(8, "honest")
    assert refusals.refused(0, 1.0, 1.1, 0.0, "one") == "passing"
    refusals.answered(1, 1.2, 1.3, "honest")
    assert refusals.refused(0, 2.0, 2.1, 0.0, "two") == "shut"


def test_lower_limit_is_found_although_one_source_is_answered() -> None:
    refusals = known_to_take(40, "light")
    for number in range(CALLS + PROOF):
        refusals.refused(4, number, number + 0.1, 0.0, "heavy")
        refusals.answered(4, number + 0.2, number + 0.3, "light")
    assert refusals.most == 4


def test_source_that_sends_more_than_others_is_limited() -> None:
    refusals = known_to_take(8, "honest")
    assert refusals.refused(8, 1.0, 1.1, 0.0, "busy") == "one too many"
    assert refusals.most == 8


def test_idle_replica_that_refuses_is_shut() -> None:
    assert Refusals().refused(0, 0.0, 0.1, 2.0) == "shut"
    assert proven(40).refused(0, 2.0, 2.1, 2.0) == "shut"


def test_old_limit_is_forgotten_far_above_it(refusals: Refusals) -> None:
    refusals.refused(4, 0.0, 0.1, 0.0)
    for _ in range(7):
        probe(refusals, 1.0)
    assert refusals.most == math.inf


def test_refusals_at_lower_load_have_another_reason(refusals: Refusals) -> None:
    now_s = 0.0
    while True:
        now_s += 1.0
        there = int(min(refusals.most, 16))
        if now_s % 3:
            refusals.answered(there, now_s, now_s)
        else:
            refusals.refused(there - 1, now_s, now_s, 0.0)
            if refusals.most == math.inf:
                break
        assert now_s < 8 * CALLS
    refusals.refused(15, now_s + 1, now_s + IGNORE_S - 1, 0.0)
    assert refusals.most == math.inf, "for a minute nothing follows from it"
    refusals.refused(15, now_s + IGNORE_S, now_s + IGNORE_S, 0.0)
    assert refusals.most < 16


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 500), st.integers(0, 3)), max_size=300))
def test_limit_is_always_at_least_one(events: list[tuple[bool, int, int]]) -> None:
    refusals = Refusals()
    for now_s, (refused, there, late) in enumerate(events):
        if refused:
            refusals.refused(there, float(now_s - late), float(now_s), 1.0)
        else:
            refusals.answered(there, float(now_s - late), float(now_s))
        assert refusals.most >= 1


@given(slots=st.integers(1, 40), ends=st.lists(st.integers(0, 39), min_size=50, max_size=400))
def test_fixed_limit_is_found_for_any_order_of_answers(slots: int, ends: list[int]) -> None:
    """`ends`: which of the requests there is answered next; as many are sent as may be."""
    refusals = Refusals()
    inside: list[tuple[int, float]] = []
    settled = False
    for now_s, end in enumerate(ends):
        while len(inside) < min(refusals.most, 64):
            if len(inside) >= slots:
                kind = refusals.refused(len(inside), float(now_s), float(now_s), 0.0)
                assert kind == "one too many"
                settled = True
            else:
                inside.append((len(inside) + 1, float(now_s)))
        there, sent_s = inside.pop(end % len(inside))
        refusals.answered(there, sent_s, float(now_s))
        assert not settled or slots <= refusals.most <= slots + 1
    rounds = len(ends) / slots
    assert refusals.seen <= 2 + math.log2(1 + rounds) + rounds / MAX_ROUNDS


def replica() -> Replica:
    one = Replica("http://a:1", HttpReplica("http://a:1"), RULES, ReplicaTable([]))
    one.fault = ""
    return one


def test_answered_probe_reverts_a_limit_from_refusals() -> None:
    one = replica()
    one.refused(Overloaded("503"), 1, 0.0, 1.0)
    seen = one.refusals.seen
    assert one.refusals.most == 1
    one.clear_suspicion(2.0)
    assert (one.refusals.most, one.refusals.seen) == (math.inf, seen)


def test_refusals_are_ignored_for_a_while_after_passed_probes() -> None:
    one = replica()
    one._excuse(1.0)
    assert one.refusals.refused(4, 1.0, 1.1, 0.0) == "passing"
    assert one.refusals.most == math.inf
    assert one.refusals.refused(4, 1.0 + EXCUSED_S, 1.1 + EXCUSED_S, 0.0) == "one too many"
    assert one.refusals.most == 4


def test_new_limit_is_checked_and_a_known_one_is_not(refusals: Refusals) -> None:
    refusals.refused(4, 0.0, 0.1, 0.0)
    assert not refusals.checked
    refusals.checked = True
    probe(refusals, 1.0)
    refusals.refused(4, 1.1, 1.2, 0.0)
    assert (refusals.most, refusals.checked) == (4, True)


def test_retry_after_of_one_request_does_not_shut_the_replica() -> None:
    one = replica()
    assert not one.refused(RateLimited("429", retry_after_s=2.0), 4, 0.0, 0.1), "that speaks not against it"
    assert one.open(0.1)


def test_full_replica_is_paused_for_its_retry_after() -> None:
    one = replica()
    assert one.refused(RateLimited("429", retry_after_s=2.0), 0, 0.0, 1.0)
    assert one.open(1.0), "it may be due to the request"
    one.confirm_suspicion(1.0)
    assert not one.open(2.9)
    assert one.open(3.0)
    one.refused(RateLimited("429", retry_after_s=3600.0), 0, 4.0, 4.0)
    one.confirm_suspicion(4.0)
    assert one.open(4.0 + MAX_PAUSE_S)


def test_each_refusal_without_retry_after_doubles_the_pause() -> None:
    one, pauses, now_s = replica(), [], 0.0
    for _ in range(8):
        one.refused(RateLimited("429"), 0, now_s, now_s)
        one.confirm_suspicion(now_s)
        pauses.append(one.paused_until_s - now_s)
        now_s = one.paused_until_s
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == MAX_PAUSE_S
    one.refused(Overloaded("503"), 0, now_s, now_s)
    assert one.open(now_s), "a 503 without a reason has no effect"


def gateway(**more: Any) -> ReplicaScript:
    script = ReplicaScript(
        models=("m",),
        delay=Mixture(((1, 0.2), (1, 0.4), (1, 0.6))),
        max_calls=SLOTS,
        retry_after_s=2.0,
        streams=False,
        absent=("/health", "/metrics"),
    )
    return replace(script, **more)


@pytest.mark.heavy
@pytest.mark.parametrize("streams", [False, True])
def test_unknown_gateway_limit_costs_no_throughput(streams: bool) -> None:
    async def answers(capacity: int) -> tuple[int, int]:
        async with Load(gateway(streams=streams), capacity=capacity) as load:
            await asyncio.sleep(5.0)
            before = load.replica.work()
            await asyncio.sleep(60.0)
            after = load.replica.work()
            given = after.answers - before.answers
            return given, after.calls - before.calls - given

    known, _ = run_virtual(answers(SLOTS))
    found, refused = run_virtual(answers(64))
    assert found >= 0.9 * known
    assert refused <= 12, "of some 600 calls: 4 that are under way, and one more now and then"


@pytest.mark.heavy
@in_virtual_time
async def test_gateway_with_a_raised_limit_gets_more() -> None:
    async with Load(gateway()) as load:
        await asyncio.sleep(120.0)
        load.replica.script = gateway(max_calls=32)
        await asyncio.sleep(60.0)
        before = load.replica.work().answers
        await asyncio.sleep(60.0)
        assert load.replica.work().answers - before >= 0.8 * 60.0 * 32 / 0.4


@pytest.mark.heavy
@in_virtual_time
async def test_gateway_with_fewer_places_pauses_once_and_gets_fewer() -> None:
    async with Load(gateway(max_calls=16)) as load:
        await asyncio.sleep(60.0)
        load.replica.script = gateway(max_calls=SLOTS)
        await asyncio.sleep(20.0)
        before = load.replica.work()
        await asyncio.sleep(60.0)
        after = load.replica.work()
        given = after.answers - before.answers
        assert given >= 0.9 * 60.0 * SLOTS / 0.4
        assert after.calls - before.calls - given <= 20


@pytest.mark.heavy
@in_virtual_time
async def test_shut_gateway_is_called_rarely() -> None:
    async with Load(gateway()) as load:
        await asyncio.sleep(30.0)
        load.replica.script = gateway(max_calls=0)
        await asyncio.sleep(2.0)
        before = load.replica.work().calls
        await asyncio.sleep(60.0)
        assert load.replica.work().calls - before <= 31, "one each two seconds"
        load.replica.script = gateway()
        await asyncio.sleep(5.0)
        answers = load.replica.work().answers
        await asyncio.sleep(30.0)
        assert load.replica.work().answers - answers >= 0.8 * 30.0 * SLOTS / 0.4


@pytest.mark.heavy
@in_virtual_time
async def test_dead_server_of_ten_costs_little_more_than_its_share() -> None:
    faults = Faults((("503", 0.1),))
    async with Load(gateway(max_calls=None, slots=32, faults=faults)) as load:
        await asyncio.sleep(30.0)
        before = load.replica.work().answers
        await asyncio.sleep(120.0)
        assert load.replica.work().answers - before >= 0.6 * 120.0 * 32 / 0.4


async def longest_idle_s(load: Load, seconds: float, slots: int) -> float:
    """The longest time for which the replica had a free place, requests waited, and none was sent."""
    longest_s = idle_s = 0.0
    calls = 0
    for _ in range(round(10 * seconds)):
        await asyncio.sleep(0.1)
        work = load.replica.work()
        held_back = load.engine.client.waiting and work.running < slots and work.calls == calls
        idle_s = idle_s + 0.1 if held_back else 0.0
        longest_s, calls = max(longest_s, idle_s), work.calls
    return longest_s


@pytest.mark.heavy
@settings(max_examples=settings.default.max_examples // 2)
@given(
    seed=st.integers(0, 1000),
    slots=st.integers(2, 8),
    slow=st.sampled_from([0.0, 0.02, 0.05, 0.1]),
    fails=st.sampled_from([0.0, 0.05, 0.1]),
    streams=st.booleans(),
)
def test_slow_calls_do_not_block_others_among_refusals_and_errors(
    seed: int, slots: int, slow: float, fails: float, streams: bool
) -> None:
    delay = Mixture(((1 - slow, 0.4), (slow, 20.0)), seed)
    faults = Faults((("500", fails),), seed)
    script = gateway(delay=delay, faults=faults, max_calls=slots, streams=streams)

    async def main() -> None:
        async with Load(script, first=1000 * seed) as load:
            assert await longest_idle_s(load, 90.0, slots) <= BOUND_S

    run_virtual(main())


@pytest.mark.heavy
@settings(max_examples=settings.default.max_examples // 2)
@given(seed=st.integers(0, 1000), streams=st.booleans())
@example(seed=34, streams=False)
def test_probing_fewer_ends_if_slow_calls_fill_all_slots(seed: int, streams: bool) -> None:
    """Four calls at a time, and no refusals: now and then it is tried whether two or three would do."""
    delay = Mixture(((0.95, 0.4), (0.05, 20.0)), seed)

    async def main() -> None:
        async with Load(gateway(delay=delay, max_calls=None), capacity=SLOTS) as load:
            mean_s = 0.95 * 0.4 + 0.05 * 20.0
            assert await longest_idle_s(load, 200.0, SLOTS) <= 6 * mean_s

    run_virtual(main())


@pytest.mark.heavy
@pytest.mark.parametrize("shut_s", [20.0, 60.0, 600.0])
@in_virtual_time
async def test_replica_is_used_soon_after_its_retry_after(
    shut_s: float,
) -> None:
    async with Load(gateway(retry_after_s=1.0), deadline_s=math.inf) as load:
        await asyncio.sleep(30.0)
        load.replica.script = gateway(max_calls=0, retry_after_s=1.0)
        await asyncio.sleep(shut_s)
        before = load.replica.work()
        load.replica.script = gateway(retry_after_s=1.0)
        await asyncio.sleep(2.0)
        assert load.replica.work().answers > before.answers
        assert before.calls <= 30.0 * SLOTS / 0.4 + shut_s + 64
