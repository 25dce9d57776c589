"""What calls cost, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine.prices import TokenPrices, cost_text, from_pico, to_pico
from forebay.json_numbers import dump_json, read_json
from forebay.records import Usage

COUNTS = st.integers(0, 1 << 31)
PRICES = st.builds(TokenPrices, *[st.integers(0, 10**12)] * 3)


@given(PRICES, st.lists(st.tuples(COUNTS, COUNTS), max_size=5))
def test_costs_of_calls_add_up_to_the_cost_of_their_tokens(
    prices: TokenPrices, calls: list[tuple[int, int]]
) -> None:
    usages = [Usage(prompt, completion, prompt // 2) for prompt, completion in calls]
    assert sum(map(prices.cost_pico, usages)) == prices.cost_pico(sum(usages, Usage()))


@given(PRICES, COUNTS, COUNTS, COUNTS)
def test_no_call_costs_more_than_the_most(prices: TokenPrices, prompt: int, done: int, cached: int) -> None:
    # An engine may report more cached tokens than the prompt has.
    assert 0 <= prices.cost_pico(Usage(prompt, done, cached)) <= prices.most_pico(prompt, done)


def test_cached_tokens_have_their_own_price() -> None:
    assert TokenPrices(prompt=5, cached=2, completion=7).cost_pico(Usage(10, 3, 4)) == 6 * 5 + 4 * 2 + 3 * 7


@given(st.integers(0, 10**24))
def test_an_amount_in_json_has_all_its_digits(pico: int) -> None:
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
def test_a_cost_is_short_for_a_person(pico: int, text: str) -> None:
    assert cost_text(pico) == text
