"""Generated requests."""

from __future__ import annotations

from random import Random
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.load.schedules import ClosedLoop, Poisson, make_load
from forebay.bench.load.workloads import (
    FIRST_ID,
    LAST_ID,
    CappedExponential,
    Exactly,
    Lengths,
    PrefixGroups,
    RandomTokens,
    RandomWords,
    SessionWorkload,
    TracePrompts,
    Uniform,
    Workload,
    read_lengths,
)
from forebay.errors import SettingError
from forebay.planning.simulate.traces import TraceRequest

TRACE = [
    TraceRequest(0.0, 1030, 5, (1, 2)),
    TraceRequest(1.0, 600, 7, (1,)),
    TraceRequest(2.5, 40, 1),
]
short = st.integers(1, 40)
lengths: st.SearchStrategy[Lengths] = st.one_of(
    short.map(Exactly), st.tuples(short, short).map(lambda pair: Uniform(min(pair), max(pair)))
)
token_workloads: st.SearchStrategy[Workload] = st.one_of(
    st.builds(RandomTokens, lengths, lengths),
    st.builds(PrefixGroups, st.integers(1, 5), short, lengths, lengths),
    st.builds(SessionWorkload, st.integers(1, 4), lengths, lengths, lengths),
)


@given(token_workloads, st.integers(1, 25), st.integers(0, 9), st.text(max_size=5))
def test_prompts_have_their_length_and_depend_only_on_seed_and_nonce(
    workload: Workload, count: int, seed: int, nonce: str
) -> None:
    made = workload.requests(count, seed=seed, nonce=nonce)
    assert [one.index for one in made] == list(range(count))
    assert all(len(one.prompt) == one.prompt_tokens for one in made)
    assert all(FIRST_ID <= id < LAST_ID for one in made for id in one.prompt)  # type: ignore[operator]
    assert made == workload.requests(count, seed=seed, nonce=nonce)
    other = workload.requests(count, seed=seed, nonce=nonce + "x")
    assert [(one.prompt_tokens, one.output_tokens) for one in made] == [
        (one.prompt_tokens, one.output_tokens) for one in other
    ]


@pytest.mark.heavy
def test_capped_exponential_uses_rejection_sampling() -> None:
    draws = [CappedExponential(128, 512).draw(random) for random in [Random(1)] for _ in range(40_000)]
    assert min(draws) == 1
    assert max(draws) <= 512
    # The mean of an exponential below its limit, plus half a token of rounding up; a clipped one has more at
    # the limit.
    assert mean(draws) == pytest.approx(128 - 512 / (2.718281828**4 - 1) + 0.5, rel=0.01)
    assert sum(drawn == 512 for drawn in draws) < 50


def test_turns_continue_their_session() -> None:
    made = SessionWorkload(3, Exactly(10), Exactly(5), Exactly(7)).requests(5, seed=0, nonce="n")
    # Two sessions, the second one cut short.
    assert [(one.session, one.prompt_tokens) for one in made] == [
        ("0", 10),
        ("1", 10),
        ("0", 22),
        ("1", 22),
        ("0", 34),
    ]
    assert made[4].prompt[:22] == made[2].prompt
    assert made[2].prompt[:10] == made[0].prompt != made[1].prompt


def test_trace_shares_blocks_by_its_hashes() -> None:
    made = TracePrompts(TRACE).requests(3, seed=0, nonce="n")
    assert [(one.prompt_tokens, len(one.prompt), one.output_tokens) for one in made] == [
        (1030, 1030, 5),
        (600, 600, 7),
        (40, 40, 1),
    ]
    assert made[0].prompt[:512] == made[1].prompt[:512]
    assert made[0].prompt[512:600] != made[1].prompt[512:600]
    with pytest.raises(SettingError, match="trace holds 3 requests, and 4 were asked for"):
        TracePrompts(TRACE).requests(4, seed=0, nonce="n")


def test_a_load_has_times_by_its_seed_and_a_nonce_of_its_own() -> None:
    workload = RandomTokens(Uniform(1, 50), Uniform(1, 50))
    one, other = (make_load(Poisson(10), workload, 20, seed=3) for _ in range(2))
    assert [a.due_s for a in one.requests] == [b.due_s for b in other.requests]
    assert [a.output_tokens for a in one.requests] == [b.output_tokens for b in other.requests]
    assert one.requests[0].prompt != other.requests[0].prompt
    assert one.asked["nonce"] != other.asked["nonce"]
    again = make_load(Poisson(10), workload, 20, seed=3, nonce=one.asked["nonce"])
    assert again.requests == one.requests
    closed = make_load(ClosedLoop(4), workload, 20)
    assert closed.concurrency == 4
    assert all(a.due_s is None for a in closed.requests)
    with pytest.raises(SettingError, match="requests: expected 1 to"):
        make_load(Poisson(1), workload, 0)


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1-", "20-10", "exp:128", "exp:0:5", "exp:128:1", "exp:nan:5", "x", "1:2:3"]
)
def test_invalid_lengths_are_rejected(text: str) -> None:
    with pytest.raises(SettingError):
        read_lengths(text)


def test_other_nonce_shares_no_prefix() -> None:
    workload = RandomTokens(Exactly(64), Exactly(1))
    seen = {tuple(one.prompt[:3]) for nonce in "abc" for one in workload.requests(50, seed=0, nonce=nonce)}
    assert len(seen) == 150


def test_groups_share_their_prefix_and_nothing_else() -> None:
    made = PrefixGroups(3, 20, Exactly(4), Exactly(1)).requests(9, seed=0, nonce="n")
    assert [one.group for one in made] == ["0", "1", "2"] * 3
    assert made[0].prompt[:20] == made[3].prompt[:20] != made[1].prompt[:20]
    assert len({tuple(one.prompt[20:]) for one in made}) == 9


def test_words_make_a_text() -> None:
    made = RandomWords(Exactly(12), Exactly(3)).requests(2, seed=0, nonce="n")
    assert all(len(str(one.prompt).split()) == 12 for one in made)
    assert made[0].prompt != made[1].prompt
    assert made[0].prompt_tokens is None


def test_lengths_are_parsed_from_text() -> None:
    assert read_lengths("512") == Exactly(512)
    assert read_lengths("10-20") == Uniform(10, 20)
    assert read_lengths("exp:128:1536") == CappedExponential(128, 1536)


def test_lengths_of_another_class_describe_themselves() -> None:
    class Mine:
        def draw(self, random: Random) -> int:
            return 1

        def asked(self) -> dict[str, Any]:
            return {"kind": "mine"}

    assert RandomTokens(Mine(), Exactly(1)).asked()["prompt"] == {"kind": "mine"}
