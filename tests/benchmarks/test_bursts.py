"""The generated stream matches its plan."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from benchmarks.bursts import (
    GAMMA,
    MAX_BASE_PER_S,
    MAX_SHARE,
    MIN_BASE_PER_S,
    SCALING,
    SHAPES,
    BurstPlan,
    BurstStream,
    kleinberg_bursts,
    shape_at,
)
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.trends.terms import terms_of

PLAN = BurstPlan(seed=3, bursts=20, hours=0.8, warm_up_s=300, vocabulary=20_000)


@pytest.fixture(scope="module")
def stream() -> BurstStream:
    return BurstStream(PLAN)


@pytest.fixture(scope="module")
def posts(stream: BurstStream) -> list[tuple[int, str]]:
    return list(stream.posts())


def test_bursts_are_of_all_sizes_and_shapes(stream: BurstStream) -> None:
    assert len(stream.bursts) == PLAN.bursts
    assert {burst.shape for burst in stream.bursts} == set(SHAPES)
    fives = [burst for burst in stream.bursts if burst.factor == 5]
    assert len(fives) == 8
    assert Counter(burst.shape for burst in fives) == dict.fromkeys(SHAPES, 2)
    assert sum(burst.base_per_s == 0 for burst in stream.bursts) == 4
    for burst in stream.bursts:
        assert PLAN.warm_up_s <= burst.onset_s < burst.end_s <= PLAN.hours * 3600 + 300
        assert burst.base_per_s == 0 or MIN_BASE_PER_S <= burst.base_per_s <= MAX_BASE_PER_S
        if burst.base_per_s:
            assert burst.extra_per_s == pytest.approx((burst.factor - 1) * burst.base_per_s)


def test_planted_bursts_are_in_the_stream(stream: BurstStream, posts: list[tuple[int, str]]) -> None:
    with_terms = [(time_ms / 1000, set(terms_of(text))) for time_ms, text in posts]
    rhythm = float(stream.rate_per_s(1440)) / PLAN.rate_per_s
    for burst in stream.bursts:
        moments = [second for second, terms in with_terms if burst.terms[0] in terms]
        during = sum(burst.onset_s <= second < burst.end_s for second in moments)
        before = sum(burst.onset_s - 300 <= second < burst.onset_s for second in moments) / 300
        length = burst.end_s - burst.onset_s
        area = sum(shape_at(burst.shape, (index + 0.5) / 100) for index in range(100)) / 100
        planned = burst.extra_per_s * area * length * rhythm
        assert during - before * length == pytest.approx(planned, rel=0.6, abs=40)


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
def test_kleinberg_sequence_is_the_cheapest(batches: list[tuple[int, int]]) -> None:
    counts, totals = [count for count, _ in batches], [total for _, total in batches]
    (found,) = kleinberg_bursts(np.array([counts], float), np.array(totals, float))
    states = [0] * len(counts)
    for each in found:
        states[each.first : each.end] = [1] * (each.end - each.first)
    usual = min(max(sum(counts) / sum(totals), 1e-12), MAX_SHARE)
    shares = (usual, min(usual * SCALING, MAX_SHARE))
    mine = cost(tuple(states), counts, totals, shares, GAMMA * np.log(max(len(counts), 2)))
    assert mine == pytest.approx(cheapest(counts, totals), rel=1e-9, abs=1e-6)


def test_burst_is_found_at_its_position() -> None:
    counts = np.ones((2, 100))
    counts[0, 40:50] = 20
    found, none = kleinberg_bursts(counts, np.full(100, 1000.0))
    assert [(each.first, each.end) for each in found] == [(40, 50)]
    assert found[0].weight > 50
    assert none == []


def test_posts_are_ordered_and_follow_the_daily_rate(
    stream: BurstStream, posts: list[tuple[int, str]]
) -> None:
    times = [time_ms for time_ms, _ in posts]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] < PLAN.hours * 3_600_000
    background = float(stream.rate_per_s(range(int(PLAN.hours * 3600))).sum())
    assert 1 < len(posts) / background < 1.5
    # Trough at 4 o'clock: 6 o'clock is two hours after it, 16 o'clock the top.
    assert stream.rate_per_s(-2 * 3600) == pytest.approx(0.4 * PLAN.rate_per_s)
    assert stream.rate_per_s(10 * 3600) == pytest.approx(1.6 * PLAN.rate_per_s)
