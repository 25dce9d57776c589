"""Replicas that move between prefill and decode as requests change, without losses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from benchmarks.moving_split import DECIDE_EVERY_S, GAIN, WINDOW_S, MovingPools, PoolLoad, RecentSplit
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.planning.simulate.disaggregation import Split, Transfer, at_rate
from forebay.planning.simulate.engine import LLAMA_8B
from forebay.planning.simulate.traces import Arrivals
from forebay.planning.split import decode_batch

ENGINE = replace(LLAMA_8B, max_num_seqs=4)
TRANSFER = Transfer(latency_s=0.005)


@dataclass
class Scripted:
    """Returns the given decisions in turn."""

    turns: list[int]
    came: list[tuple[float, int]] = field(default_factory=list)
    loads: list[PoolLoad] = field(default_factory=list)

    def arrived(self, now_s: float, prompt_tokens: int) -> None:
        self.came.append((now_s, prompt_tokens))

    def split(self, now_s: float, current: Split, load: PoolLoad) -> Split:
        replicas = current.prefill + current.decode
        self.loads.append(load)
        prefill = self.turns[(len(self.loads) - 1) % len(self.turns)]
        return Split(prefill, replicas - prefill)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 3))
def test_whatever_is_decided_every_request_is_answered(turns: list[int], start: int, seed: int) -> None:
    trace = at_rate(Arrivals(60, 1.0, 1500, 60, seed=seed).make(), seed)
    policy = Scripted(turns)
    served = MovingPools(trace, ENGINE, Split(start, 5 - start), transfer=TRANSFER).serve(policy)
    assert [answer.index for answer in served.answers] == list(range(len(trace)))
    for asked, answer in zip(trace, served.answers, strict=True):
        assert asked.arrived_s + TRANSFER.seconds(asked.prompt_tokens) < answer.arrived_s
        assert answer.arrived_s < answer.first_token_s <= answer.finished_s
        assert answer.output_tokens == asked.output_tokens
    assert policy.came == [(one.arrived_s, one.prompt_tokens) for one in trace]
    assert served.splits[0] == (0.0, Split(start, 5 - start))
    assert all(at_s % DECIDE_EVERY_S == 0 for at_s, _ in served.splits)


def test_a_policy_is_told_what_the_pools_have() -> None:
    trace = at_rate(Arrivals(60, 1.0, 1500, 400).make())
    policy = Scripted([1])
    MovingPools(trace, ENGINE, Split(1, 1), transfer=TRANSFER).serve(policy)
    assert policy.loads[0] == PoolLoad(0, 0, 0.0) or policy.loads[0].decoding > 0
    assert max(load.decoding for load in policy.loads) > 4, "more than the batch holds"
    assert max(load.context_tokens for load in policy.loads) > 1500


def test_one_that_keeps_its_split_is_never_idle_for_a_change() -> None:
    trace = at_rate(Arrivals(60, 1.0, 1500, 60).make())
    kept = MovingPools(trace, ENGINE, Split(1, 2), transfer=TRANSFER).serve(Scripted([1]))
    moved = MovingPools(trace, ENGINE, Split(1, 2), transfer=TRANSFER).serve(Scripted([2, 1]))
    assert kept.splits == [(0.0, Split(1, 2))]
    assert len(moved.splits) > 2
    assert max(a.finished_s for a in kept.answers) <= max(a.finished_s for a in moved.answers)


TPOT_S = 0.05
IDLE = PoolLoad(0, 0, 0.0)


def full(replicas: float, context: float = 1000.0) -> PoolLoad:
    """The load that fills this many decode replicas."""
    decoding = round(replicas * decode_batch(LLAMA_8B, context, TPOT_S))
    return PoolLoad(0, decoding, decoding * context)


def policy(replicas: float, prompt_tokens: int = 2000) -> RecentSplit:
    """A policy that has just seen as many prompts as `replicas` can prefill."""
    made = RecentSplit(LLAMA_8B, TPOT_S)
    count = round(replicas * WINDOW_S / LLAMA_8B.alone_s(prompt_tokens))
    for number in range(count):
        made.arrived(WINDOW_S * number / count, prompt_tokens)
    return made


def test_both_pools_are_equally_busy() -> None:
    assert policy(3.0).split(WINDOW_S, Split(4, 4), full(1.0)) == Split(6, 2)
    assert policy(1.0).split(WINDOW_S, Split(4, 4), full(3.0)) == Split(2, 6)


def test_prompts_that_wait_count_as_those_that_came() -> None:
    made = policy(1.0)
    came = round(WINDOW_S / LLAMA_8B.alone_s(2000))
    decoding = full(1.0)
    assert made.split(WINDOW_S, Split(4, 4), decoding) == Split(4, 4)
    waiting = PoolLoad(2 * came, decoding.decoding, decoding.context_tokens)
    assert made.split(WINDOW_S, Split(4, 4), waiting) == Split(6, 2)


def test_what_came_long_ago_does_not_count() -> None:
    made = policy(3.0)
    assert made.split(3 * WINDOW_S, Split(4, 4), full(1.0)) == Split(1, 7)


def test_with_nothing_to_do_nothing_changes() -> None:
    assert RecentSplit(LLAMA_8B, TPOT_S).split(0.0, Split(3, 5), IDLE) == Split(3, 5)


@given(
    st.floats(0.1, 8.0),
    st.floats(0.1, 8.0),
    st.integers(1, 7),
    st.integers(50, 4000),
)
def test_all_replicas_stay_and_a_decision_once_taken_stands(
    prefill: float, decode: float, start: int, prompt_tokens: int
) -> None:
    made, load = policy(prefill, prompt_tokens), full(decode)
    found = made.split(WINDOW_S, Split(start, 8 - start), load)
    assert found.prefill + found.decode == 8
    assert made.split(WINDOW_S, found, load) == found
    assert GAIN > 1
