"""What waits, and the tokens in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.backlog import Backlog, Spent, estimate

COUNTS = st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("records", "spent", "tokens"),
    [
        (200, Spent(10, 500, 120), (10_000, 2400)),
        (1, Spent(3, 10, 11), (3, 4)),
        (0, Spent(10, 500, 120), (0, 0)),
        (5, Spent(10, 0, 0), (0, 0)),
        (200, Spent(0, 0, 0), (None, None)),
        (200, Spent(0, 500, 120), (None, None)),
    ],
)
def test_what_waits_is_like_what_came_before(
    records: int, spent: Spent, tokens: tuple[int | None, int | None]
) -> None:
    assert estimate(records, spent, 1.5) == Backlog(records, *tokens, age_s=1.5)


@given(records=COUNTS, done=st.integers(1, 10**9), prompt=COUNTS, completion=COUNTS)
def test_an_estimate_is_within_half_a_token_of_the_formula(
    records: int, done: int, prompt: int, completion: int
) -> None:
    found = estimate(records, Spent(done, prompt, completion))
    assert found.prompt_tokens is not None
    assert found.completion_tokens is not None
    # Whole numbers, where floats have run out of digits.
    slack = done + records * prompt // 10**14 * done
    assert abs(2 * (found.prompt_tokens * done - records * prompt)) <= slack
    slack = done + records * completion // 10**14 * done
    assert abs(2 * (found.completion_tokens * done - records * completion)) <= slack
