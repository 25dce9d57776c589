"""Decayed counts in constant memory, compared with exact counts."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.samples import keys_of
from forebay.apps.trends.rising import RateSketch, Surprise
from forebay.stateful.rates import rise

HALF_LIVES = (3.0, 100.0)
streams = st.lists(
    st.tuples(st.integers(0, 40), st.lists(st.tuples(st.integers(0, 30), st.integers(1, 50)), max_size=8)),
    max_size=20,
)


def feed(sketch: RateSketch, stream: list[tuple[int, list[tuple[int, int]]]], start: int = 0) -> int:
    tick = start
    for gap, entries in stream:
        tick += gap
        sketch.advance(tick)
        names = [f"t{term}" for term, _ in entries]
        sketch.add(sketch.places(keys_of(names)), [count for _, count in entries], len(entries))
    return tick


def exact(
    stream: list[tuple[int, list[tuple[int, int]]]], half_life: float
) -> tuple[dict[int, float], float]:
    counts: dict[int, float] = defaultdict(float)
    total, end = 0.0, sum(gap for gap, _ in stream)
    tick = 0
    for gap, entries in stream:
        tick += gap
        weight = 0.5 ** ((end - tick) / half_life)
        total += weight * len(entries)
        for term, count in entries:
            counts[term] += weight * count
    return counts, total


def read(sketch: RateSketch, terms: range = range(31)) -> np.ndarray:
    return sketch.read(sketch.places(keys_of([f"t{term}" for term in terms])))


@given(streams)
def test_counts_are_decayed(stream: list[tuple[int, list[tuple[int, int]]]]) -> None:
    sketch = RateSketch(HALF_LIVES, width_bits=16)
    feed(sketch, stream)
    found = read(sketch).min(axis=1)
    for index, half_life in enumerate(HALF_LIVES):
        counts, total = exact(stream, half_life)
        # No two of 31 terms share a cell in all rows of so wide a sketch.
        assert found[index] == pytest.approx([counts[term] for term in range(31)], rel=1e-4, abs=1e-4)
        assert sketch.totals()[index] == pytest.approx(total, rel=1e-9, abs=1e-9)


@given(streams)
def test_narrow_sketch_never_undercounts(stream: list[tuple[int, list[tuple[int, int]]]]) -> None:
    sketch = RateSketch(HALF_LIVES, width_bits=3)
    feed(sketch, stream)
    for index, half_life in enumerate(HALF_LIVES):
        counts, _ = exact(stream, half_life)
        wanted = np.array([counts[term] for term in range(31)])
        assert (read(sketch)[index] >= wanted * (1 - 1e-4) - 1e-4).all()


@given(streams, streams, st.integers(0, 500))
def test_sketches_add_up(one: list, other: list, later: int) -> None:
    both, first, second = (RateSketch(HALF_LIVES, width_bits=10) for _ in range(3))
    end = max(feed(first, one), feed(second, other, later))
    first += second
    first.advance(end)
    ticks: dict[int, list[list[tuple[int, int]]]] = defaultdict(list)
    for start, stream in ((0, one), (later, other)):
        tick = start
        for gap, entries in stream:
            tick += gap
            ticks[tick].append(entries)
    for tick in sorted(ticks):
        for entries in ticks[tick]:
            feed(both, [(0, entries)], tick)
    both.advance(end)
    assert read(first) == pytest.approx(read(both), rel=1e-3, abs=1e-3)


def test_counts_vanish_after_years_of_silence() -> None:
    sketch = RateSketch(HALF_LIVES, width_bits=8)
    feed(sketch, [(0, [(1, 1000)])])
    sketch.advance(10**9)
    assert read(sketch).max() < 1e-9
    feed(sketch, [(0, [(1, 5)])], 10**9)
    assert read(sketch, range(1, 2)).min() == pytest.approx(5)


def test_backward_time_changes_nothing() -> None:
    sketch = RateSketch(HALF_LIVES, width_bits=8)
    feed(sketch, [(50, [(1, 8)])])
    before = read(sketch)
    sketch.advance(3)
    assert (read(sketch) == before).all()


def test_sketches_of_other_shapes_are_rejected() -> None:
    sketch = RateSketch(HALF_LIVES, width_bits=8)
    with pytest.raises(ValueError, match="do not add up"):
        sketch += RateSketch(HALF_LIVES, width_bits=9)


def test_clusters_continue_from_saved_state() -> None:
    sketch = RateSketch(HALF_LIVES, width_bits=8)
    feed(sketch, [(5, [(1, 8), (2, 3)])])
    other = RateSketch.restore(sketch.state())
    for each in (sketch, other):
        feed(each, [(400, [(1, 7)])], 5)
    assert sketch.state() == other.state()


@pytest.mark.heavy
@pytest.mark.parametrize("per_tick", [0.02, 0.1, 0.5])
def test_evidence_equals_the_rarity_of_a_decayed_count(per_tick: float) -> None:
    rng, kept, nats = np.random.default_rng(1), 0.5 ** (1 / 3), 8.0
    surprise, count, alarms = Surprise(3.0), np.zeros(100_000), 0
    for tick in range(70):
        count = count * kept + rng.poisson(per_tick, len(count))
        if tick >= 50:
            found = surprise(count, 1 / (1 - kept), per_tick * 1e9, 1e9)
            alarms += int((found >= nats).sum())
    assert alarms < 0.15 * np.exp(-nats) * 20 * len(count)


@given(*[st.floats(0.1, 1e3)] * 4)
def test_evidence_without_decay_is_the_plain_one(k: float, n: float, b: float, m: float) -> None:
    assert Surprise(0.01)(k, n, b, m) == pytest.approx(rise(k, n, b, m), rel=1e-6, abs=1e-6)
