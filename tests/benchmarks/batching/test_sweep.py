"""Static batching is measured with its best settings."""

from __future__ import annotations

import pytest
from benchmarks.batching.transformers import BatchCost, fastest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import SettingError


def cost(batch_size: int, prefill_s: float, step_s: float) -> BatchCost:
    return BatchCost("sdpa", batch_size, prefill_s, step_s)


def test_a_batch_takes_its_prompts_and_its_longest_answer() -> None:
    two = cost(2, 1.0, 0.1)
    assert two.load_s([3, 11]) == pytest.approx(1.0 + 10 * 0.1)
    # The last batch is half full: half the prompts, and as many steps as its own answer has.
    assert two.load_s([3, 11, 6]) == pytest.approx(2.0 + 0.5 + 5 * 0.1)
    assert two.load_s([]) == 0


def test_even_answers_want_large_batches_and_uneven_ones_small() -> None:
    small, large = cost(1, 0.1, 0.02), cost(8, 0.8, 0.08)
    assert fastest([small, large], [100] * 8) is large
    assert fastest([small, large], [2] * 7 + [400]) is small


def test_without_a_batch_that_fits_there_is_nothing_to_measure() -> None:
    with pytest.raises(SettingError, match="no batch size could be measured"):
        fastest([], [1])


@given(
    st.lists(st.integers(1, 2000), min_size=1, max_size=40),
    st.integers(1, 16),
    st.floats(0, 10),
    st.floats(0, 1),
)
def test_batches_never_take_less_than_the_longest_answer_alone(
    lengths: list[int], batch_size: int, prefill_s: float, step_s: float
) -> None:
    batched = cost(batch_size, prefill_s, step_s)
    assert batched.load_s(lengths) >= (max(lengths) - 1) * step_s
    assert batched.load_s([max(lengths)] * len(lengths)) >= batched.load_s(lengths)
