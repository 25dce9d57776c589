from __future__ import annotations

from statistics import fmean

import pytest
from benchmarks.grid.cells import EXACT, EXPONENTIAL, HEAVY, TAILS, tail_lengths
from hypothesis import given
from hypothesis import strategies as st


@given(
    tail=st.sampled_from(TAILS),
    count=st.integers(8, 300),
    mean=st.integers(2, 300),
    room=st.floats(4, 20),
    seed=st.integers(0, 9),
)
def test_every_tail_has_the_same_mean_within_its_limit(
    tail: str, count: int, mean: int, room: float, seed: int
) -> None:
    limit = int(mean * room)
    lengths = tail_lengths(tail, count, mean, limit, seed)
    assert len(lengths) == count
    assert all(1 <= length <= limit for length in lengths)
    # Whole tokens: of several equal lengths all grow at once.
    assert fmean(lengths) == pytest.approx(mean, rel=0.08, abs=1)
    assert tail_lengths(tail, count, mean, limit, seed) == lengths
    assert sorted(tail_lengths(tail, count, mean, limit, seed + 1)) == sorted(lengths)


def test_the_tails_are_longer_one_by_one() -> None:
    lengths = {tail: sorted(tail_lengths(tail, 100, 32, 512)) for tail in TAILS}
    assert lengths[EXACT][0] == lengths[EXACT][-1] == 32
    assert lengths[EXACT][-1] < lengths[EXPONENTIAL][-1] < lengths[HEAVY][-1] <= 512
    assert lengths[EXACT][50] > lengths[EXPONENTIAL][50] > lengths[HEAVY][50]
    # The median of an exponential distribution is ln 2 of its mean.
    assert lengths[EXPONENTIAL][50] == pytest.approx(32 * 0.693, abs=1.5)
