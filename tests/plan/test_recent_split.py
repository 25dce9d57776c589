"""The split follows what both pools have to do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.plan.recent_split import GAIN, WINDOW_S, RecentSplit
from forebay.plan.split import decode_batch
from forebay.simulate.disaggregation import Split
from forebay.simulate.engine import LLAMA_8B
from forebay.simulate.moving_split import PoolLoad

TPOT_S = 0.05
IDLE = PoolLoad(0, 0, 0.0)


def full(replicas: float, context: float = 1000.0) -> PoolLoad:
    """What fills so many decode replicas."""
    decoding = round(replicas * decode_batch(LLAMA_8B, context, TPOT_S))
    return PoolLoad(0, decoding, decoding * context)


def policy(replicas: float, prompt_tokens: int = 2000) -> RecentSplit:
    """One that has just seen as many prompts as so many replicas can prefill."""
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
