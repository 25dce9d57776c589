"""How many tokens vLLM gathers in a piece."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.piece_size import LEAST_PIECES, MAX_TOKENS, PIECE_S, PieceSize


def learned(tokens: int, pieces: int, took_s: float) -> PieceSize:
    size = PieceSize()
    size.learn(1, tokens, pieces, took_s)
    return size


def test_first_answer_has_a_piece_for_each_token() -> None:
    assert PieceSize().wanted == 1


@pytest.mark.parametrize(
    ("tokens", "token_s", "wanted"),
    [
        (801, 0.01, 25),  # a piece every quarter of a second
        (801, 0.001, 64),  # at most 64 tokens
        (81, 0.01, 10),  # eight pieces of a short answer
        (15, 0.01, 1),
        (801, 0.3, 1),  # a slow engine sends each token
    ],
)
def test_wanted_follows_speed_and_length(tokens: int, token_s: float, wanted: int) -> None:
    assert learned(tokens, tokens, (tokens - 1) * token_s).wanted == wanted


def test_fewer_pieces_of_the_same_speed_change_nothing() -> None:
    size = learned(801, 801, 8.0)
    for _ in range(100):
        size.learn(25, 801, 33, 8.0)
    assert (size.wanted, size.expected(25), size.expected(1)) == (25, 25, 1)


def test_a_server_that_ignores_it_is_noticed() -> None:
    size = learned(801, 801, 8.0)
    assert (size.wanted, size.expected(25)) == (25, 25)
    for _ in range(100):
        size.learn(25, 801, 801, 8.0)
    assert (size.wanted, size.expected(25)) == (25, 1)


def test_a_slower_answer_counts_at_once() -> None:
    size = learned(801, 801, 8.0)
    size.learn(25, 801, 33, 160.0)
    assert size.wanted == 1


def test_tokens_without_pieces_are_ignored() -> None:
    """Those of a tool call, or hidden ones of reasoning."""
    size = learned(801, 801, 8.0)
    size.learn(1, 8010, 10, 0.5)
    assert (size.wanted, size.expected(1)) == (25, 1)


@pytest.mark.parametrize(("tokens", "pieces"), [(0, 0), (0, 5), (1, 1), (50, 1), (3, 4)])
def test_answers_without_a_speed_are_ignored(tokens: int, pieces: int) -> None:
    size = learned(801, 801, 8.0)
    size.learn(1, tokens, pieces, 0.5)
    assert (size.wanted, size.expected(1)) == (25, 1)


@given(
    st.lists(
        st.tuples(st.integers(0, 2**31), st.integers(0, 2**31), st.floats(0, 1e9, allow_nan=False)),
        max_size=20,
    )
)
def test_sizes_stay_in_their_limits(answers: list[tuple[int, int, float]]) -> None:
    size = PieceSize()
    for tokens, pieces, took_s in answers:
        asked = size.wanted
        size.learn(asked, tokens, pieces, took_s)
        assert 1 <= size.wanted <= MAX_TOKENS
        assert 1 <= size.expected(asked) <= 4 * MAX_TOKENS


@given(st.integers(2, 100_000), st.floats(1e-5, 100.0))
def test_a_usual_answer_has_enough_pieces(tokens: int, token_s: float) -> None:
    wanted = learned(tokens, tokens, (tokens - 1) * token_s).wanted
    assert wanted == 1 or (tokens / wanted >= LEAST_PIECES and wanted * token_s <= PIECE_S * 1.001)
