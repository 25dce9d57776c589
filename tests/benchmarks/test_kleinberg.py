"""The two-state automaton: the cheapest sequence of states, compared with brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from benchmarks.bursts import GAMMA, MAX_SHARE, SCALING, kleinberg_bursts
from hypothesis import given
from hypothesis import strategies as st


def cheapest(counts: list[int], totals: list[int]) -> float:
    """The cost of the best sequence of states, by brute force."""
    usual = min(max(sum(counts) / max(sum(totals), 1), 1e-12), MAX_SHARE)
    shares = (usual, min(usual * SCALING, MAX_SHARE))
    enter = GAMMA * np.log(max(len(counts), 2))
    return min(
        cost(states, counts, totals, shares, enter)
        for states in itertools.product((0, 1), repeat=len(counts))
    )


def cost(
    states: tuple[int, ...], counts: list[int], totals: list[int], shares: tuple[float, float], enter: float
) -> float:
    total, before = 0.0, 0
    for state, count, whole in zip(states, counts, totals, strict=True):
        total += enter if state > before else 0
        total -= count * np.log(shares[state]) + (whole - count) * np.log1p(-shares[state])
        before = state
    return total


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(20, 60)), min_size=1, max_size=8))
def test_the_sequence_is_the_cheapest(batches: list[tuple[int, int]]) -> None:
    counts, totals = [count for count, _ in batches], [total for _, total in batches]
    (found,) = kleinberg_bursts(np.array([counts], float), np.array(totals, float))
    states = [0] * len(counts)
    for each in found:
        states[each.first : each.end] = [1] * (each.end - each.first)
    usual = min(max(sum(counts) / sum(totals), 1e-12), MAX_SHARE)
    shares = (usual, min(usual * SCALING, MAX_SHARE))
    mine = cost(tuple(states), counts, totals, shares, GAMMA * np.log(max(len(counts), 2)))
    assert mine == pytest.approx(cheapest(counts, totals), rel=1e-9, abs=1e-6)


def test_a_burst_is_found_where_it_is() -> None:
    counts = np.ones((2, 100))
    counts[0, 40:50] = 20
    found, none = kleinberg_bursts(counts, np.full(100, 1000.0))
    assert [(each.first, each.end) for each in found] == [(40, 50)]
    assert found[0].weight > 50
    assert none == []
