from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.fleet.routing_request import MAX_BLOCKS, TokenEstimate, prompt_text, text_blocks
from forebay.records import Message, Request


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_two_texts_share_the_blocks_of_their_common_beginning(common: str, one: str, other: str) -> None:
    left, right = common + one, common + other
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    first, second = text_blocks(left, 4), text_blocks(right, 4)
    assert len(first) == len(left) // 4
    shared = same // 4
    assert first[:shared] == second[:shared]
    assert set(first[shared:]).isdisjoint(second)


def test_blocks_are_bounded_and_fit_the_index() -> None:
    blocks = text_blocks("x" * (MAX_BLOCKS + 10), 1)
    assert len(blocks) == len(set(blocks)) == MAX_BLOCKS
    assert all(0 <= block < 1 << 60 for block in blocks)


def test_messages_are_distinguished_from_one_text() -> None:
    chat = Request("r", "m", messages=(Message("system", "be short"), Message("user", "hi")))
    other = Request("r", "m", messages=(Message("system", "be short"), Message("user", "ho")))
    assert prompt_text(chat) != prompt_text(other)
    assert prompt_text(Request("r", "m", prompt="hi")) == "hi"


def test_tokens_are_learned_from_what_replicas_count() -> None:
    estimate = TokenEstimate()
    assert estimate.tokens(400) == 100
    for _ in range(500):
        estimate.learn(3000, 1500)
    assert estimate.tokens(400) == 200
    estimate.learn(10, 500)
    assert estimate.tokens(400) == 200, "short prompts are mostly template"
    for _ in range(1000):
        estimate.learn(10**6, 1)
    assert estimate.tokens(1600) >= 100, "a replica that lies is bounded"
    assert estimate.tokens(0) == 1
