"""What calls cost, exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.prices import (
    TEMPLATE_TOKENS,
    TokenPrices,
    cost_text,
    from_pico,
    most_answer_tokens,
    most_prompt_tokens,
    to_pico,
)
from forebay.engine.protocol import MAX_TOKENS
from forebay.json_numbers import dump_json, read_json
from forebay.records import Message, Request, Sampling, Usage

COUNTS = st.integers(0, 1 << 31)
PRICES = st.builds(TokenPrices, *[st.integers(0, 10**12)] * 3)


@given(PRICES, st.lists(st.tuples(COUNTS, COUNTS), max_size=5))
def test_call_costs_add_up_to_the_cost_of_their_tokens(
    prices: TokenPrices, calls: list[tuple[int, int]]
) -> None:
    usages = [Usage(prompt, completion, prompt // 2) for prompt, completion in calls]
    assert sum(map(prices.cost_pico, usages)) == prices.cost_pico(sum(usages, Usage()))


@given(PRICES, COUNTS, COUNTS, COUNTS)
def test_no_call_exceeds_its_maximum_cost(prices: TokenPrices, prompt: int, done: int, cached: int) -> None:
    # An engine may report more cached tokens than the prompt has.
    assert 0 <= prices.cost_pico(Usage(prompt, done, cached)) <= prices.most_pico(prompt, done)


def test_cached_tokens_have_their_own_price() -> None:
    assert TokenPrices(prompt=5, cached=2, completion=7).cost_pico(Usage(10, 3, 4)) == 6 * 5 + 4 * 2 + 3 * 7


@pytest.mark.parametrize(
    ("extra", "tokens"),
    [
        ({}, 10),
        ({"min_p": 0.1}, 10),
        ({"max_tokens": 4}, 4),
        ({"max_tokens": 4, "max_completion_tokens": 30}, 30),
        ({"n": 3, "best_of": 5, "max_tokens": 20}, 100),
        ({"max_tokens": None}, MAX_TOKENS),
        ({"n": "3"}, 10 * MAX_TOKENS),
    ],
)
def test_several_choices_count_for_the_maximum(extra: dict[str, Any], tokens: int) -> None:
    assert most_answer_tokens(Sampling(max_tokens=10, extra=extra)) == tokens


def test_whole_request_counts_for_the_maximum() -> None:
    ask = Request("r", "m", (Message("user", "é" * 99),))
    plain = most_prompt_tokens(ask)
    assert plain > 2 * 99 + TEMPLATE_TOKENS
    more = replace(ask, schema={"enum": ["x" * 500]}, sampling=Sampling(extra={"tools": ["y" * 700]}))
    assert most_prompt_tokens(more) > plain + 1200
    two = replace(ask, messages=(Message("system", ""), *ask.messages))
    assert most_prompt_tokens(two) > plain + 20


@given(st.integers(0, 10**24))
def test_amount_in_json_has_all_digits(pico: int) -> None:
    assert to_pico(read_json(dump_json([from_pico(pico)]))[0]) == pico


@pytest.mark.parametrize(
    ("pico", "text"),
    [
        (0, "0"),
        (12_750_000, "0.000013"),
        (123_400_000_000, "0.12"),
        (1234 * 10**10, "12.34"),
        (10**15, "1000.00"),
    ],
)
def test_displayed_cost_is_short(pico: int, text: str) -> None:
    assert cost_text(pico) == text
