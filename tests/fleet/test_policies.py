from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError
from forebay.fleet.config import DEFAULT_POLICY
from forebay.fleet.policies import POLICIES, SessionAffinity, make_policy
from forebay.fleet.replica_table import ReplicaLimits, ReplicaTable
from forebay.fleet.routing_request import RoutingRequest
from forebay.records import ReplicaLoad

BLOCK = 16


def fleet(count: int = 4, names: list[str] | None = None) -> ReplicaTable:
    names = names or [f"r{n}" for n in range(count)]
    return ReplicaTable([ReplicaLimits(name, 16_000, 64) for name in names], block_tokens=BLOCK)


def choose(name: str, one: ReplicaTable, demand: RoutingRequest, seed: int = 0) -> int:
    return make_policy(name, seed=seed).choose(demand, one.cached(demand), one, 0.0)


def load(one: ReplicaTable, requests: list[int], demand: RoutingRequest | None = None) -> None:
    for replica, count in enumerate(requests):
        for _ in range(count):
            one.take(replica, demand or RoutingRequest(100), one.nothing, 0.0)


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[int], list[bool], list[RoutingRequest]]:
    count = draw(st.integers(1, 9))
    loads = draw(st.lists(st.integers(0, 60), min_size=count, max_size=count))
    available = draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any))
    demands = draw(
        st.lists(
            st.builds(
                lambda blocks, tail, session: RoutingRequest(
                    len(blocks) * BLOCK + tail, tuple(blocks), session
                ),
                st.lists(st.integers(0, 4), max_size=5, unique=True),
                st.integers(1, 100),
                st.sampled_from([None, "", "a", "é\ud800"]),
            ),
            min_size=1,
            max_size=12,
        )
    )
    return loads, available, demands


@pytest.mark.parametrize("name", POLICIES.own)
@given(situations())
def test_choice_is_deterministic_among_available_replicas(
    name: str, situation: tuple[list[int], list[bool], list[RoutingRequest]]
) -> None:
    loads, available, demands = situation

    def choices() -> list[int]:
        one = fleet(len(loads))
        load(one, loads)
        for replica, is_available in enumerate(available):
            one.set_available(replica, is_available)
            one.report(replica, ReplicaLoad(0.0, 1.0, float(loads[replica]), 0.1 * replica))
        policy = make_policy(name, seed=7)
        chosen = []
        for at, demand in enumerate(demands):
            cached = one.cached(demand)
            chosen.append(policy.choose(demand, cached, one, float(at)))
            one.take(chosen[-1], demand, cached, float(at))
        return chosen

    first = choices()
    assert all(available[replica] for replica in first)
    assert choices() == first


def test_unknown_policy_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"expected one of random, .*dynamo; found 'best'"):
        make_policy("best")
    assert DEFAULT_POLICY in POLICIES.names()


def test_round_robin_takes_turns() -> None:
    one, policy = fleet(3), make_policy("round_robin")
    turns = [policy.choose(RoutingRequest(1), one.nothing, one, 0.0) for _ in range(4)]
    one.set_available(1, False)
    turns += [policy.choose(RoutingRequest(1), one.nothing, one, 0.0) for _ in range(3)]
    assert turns == [0, 1, 2, 0, 2, 0, 2]


@pytest.mark.parametrize("name", ["random", "power_of_two", "llm_d"])
def test_random_choices_spread(name: str) -> None:
    one, policy = fleet(4), make_policy(name, seed=3)
    seen = Counter(policy.choose(RoutingRequest(1), one.nothing, one, 0.0) for _ in range(400))
    assert set(seen) == {0, 1, 2, 3}
    assert min(seen.values()) > 50


def test_least_requests_counts_those_of_others() -> None:
    one = fleet(3)
    load(one, [2, 1, 3])
    assert choose("least_requests", one, RoutingRequest(10)) == 1
    one.report(1, ReplicaLoad(0.0, running=4.0))
    assert choose("least_requests", one, RoutingRequest(10)) == 0


def test_power_of_two_never_chooses_the_fullest() -> None:
    one = fleet(3)
    load(one, [5, 1, 3])
    assert {choose("power_of_two", one, RoutingRequest(10), seed) for seed in range(50)} == {1, 2}


def test_sessions_stay_and_few_move_when_the_fleet_changes() -> None:
    sessions = [RoutingRequest(10, session=f"user {n}") for n in range(2000)]
    before = fleet(10)
    policy = make_policy("session_affinity")
    homes = [policy.choose(demand, before.nothing, before, 0.0) for demand in sessions]
    assert max(Counter(homes).values()) < 1.4 * 200
    # The same replicas in another order, with one more: names count, not numbers.
    names = [*reversed(before.names), "new"]
    after = fleet(names=names)
    now = [names[policy.choose(demand, after.nothing, after, 0.0)] for demand in sessions]
    moved = [(f"r{home}", name) for home, name in zip(homes, now, strict=True) if f"r{home}" != name]
    assert all(name == "new" for _, name in moved)
    assert 0 < len(moved) < 1.5 * 2000 / 11


def test_unnamed_session_is_identified_by_its_first_block() -> None:
    one = fleet(8)
    homes = {choose("session_affinity", one, RoutingRequest(40, (7, n))) for n in range(20)}
    assert len(homes) == 1
    load(one, [1, 1, 1, 1, 1, 0, 1, 1])
    assert choose("session_affinity", one, RoutingRequest(40)) == 5


def test_expected_ttft_prefers_the_cached_replica_with_a_short_queue() -> None:
    one = fleet(2)
    blocks = tuple(range(50))
    one.take(1, RoutingRequest(800, blocks), one.nothing, 0.0)
    repeat = RoutingRequest(820, blocks)
    assert choose("expected_ttft", one, repeat) == 0, "the prefix is only being computed there"
    one = fleet(2)
    one.finish(one.take(1, RoutingRequest(800, blocks), one.nothing, 0.0), 0.0)
    assert choose("expected_ttft", one, repeat) == 1
    load(one, [0, 1], RoutingRequest(5000))
    assert choose("expected_ttft", one, repeat) == 0


def test_sglang_policy_uses_the_match_or_the_smallest_tree() -> None:
    one, policy = fleet(3), make_policy("sglang")
    half = RoutingRequest(160, tuple(range(10)))

    def pick(demand: RoutingRequest) -> int:
        return policy.choose(demand, one.cached(demand), one, 0.0)

    assert pick(half) == 0
    one.take(0, half, one.nothing, 0.0)
    assert pick(RoutingRequest(300, tuple(range(10)))) == 0, "more than half of the prompt"
    assert pick(RoutingRequest(400, tuple(range(10)))) == 1, "less than half: the smallest tree"
    assert pick(RoutingRequest(100)) == 2
    load(one, [34, 2, 2])
    assert pick(half) == 1, "uneven: the shortest queue"


def test_aibrix_policy_uses_the_match_unless_overloaded() -> None:
    one = fleet(3)
    blocks = tuple(range(10))
    one.finish(one.take(1, RoutingRequest(160, blocks), one.nothing, 0.0), 0.0)
    assert choose("aibrix", one, RoutingRequest(160, blocks)) == 1
    load(one, [1, 5, 0])
    assert choose("aibrix", one, RoutingRequest(160, blocks)) == 2, "five is above the mean and a deviation"
    load(one, [4, 0, 4])
    assert choose("aibrix", one, RoutingRequest(160, blocks)) == 1
    load(one, [10, 0, 1])
    assert choose("aibrix", one, RoutingRequest(160, (77,))) == 1, "uneven by more than eight"


def test_aibrix_policy_takes_the_longest_match_then_the_least_loaded() -> None:
    one = fleet(3)
    one.finish(one.take(0, RoutingRequest(160, (1, 2)), one.nothing, 0.0), 0.0)
    one.finish(one.take(1, RoutingRequest(160, (1, 2, 3)), one.nothing, 0.0), 0.0)
    assert choose("aibrix", one, RoutingRequest(160, (1, 2, 3, 4))) == 1
    load(one, [1, 0, 0])
    one.finish(one.take(2, RoutingRequest(160, (1, 2)), one.nothing, 0.0), 0.0)
    assert choose("aibrix", one, RoutingRequest(160, (1, 2, 9))) == 1
    load(one, [0, 1, 0])
    assert choose("aibrix", one, RoutingRequest(160, (1, 2, 9))) == 2


def test_llm_d_policy_weighs_queue_memory_and_prefix() -> None:
    one = fleet(2)
    one.report(0, ReplicaLoad(0.0, 0.0, 0.0, 0.9))
    one.report(1, ReplicaLoad(0.0, 0.0, 5.0, 0.1))
    assert choose("llm_d", one, RoutingRequest(160)) == 0, "0.2 + 2 against 1.8"
    blocks = tuple(range(10))
    one.take(1, RoutingRequest(160, blocks), one.nothing, 0.0)
    assert choose("llm_d", one, RoutingRequest(160, blocks)) == 1, "2.2 against 1.8 + 3"


def test_dynamo_policy_adds_prefill_and_decode_blocks() -> None:
    one = fleet(2)
    decoding = one.take(0, RoutingRequest(400), one.nothing, 0.0)
    one.first_token(decoding, 1.0)
    one.take(1, RoutingRequest(150), one.nothing, 1.0)
    assert choose("dynamo", one, RoutingRequest(100)) == 1, "400 decode against 150 prefill and 150 decode"
    one.take(1, RoutingRequest(60), one.nothing, 1.0)
    assert choose("dynamo", one, RoutingRequest(100)) == 0


def test_sessions_spread_over_replicas_whose_long_urls_begin_alike() -> None:
    fleet = ReplicaTable([ReplicaLimits(f"https://{'a' * 80}/r{n}") for n in range(4)])
    rule = SessionAffinity()
    chosen = {rule.choose(RoutingRequest(1, session=str(n)), fleet.nothing, fleet, 0.0) for n in range(100)}
    assert chosen == {0, 1, 2, 3}
