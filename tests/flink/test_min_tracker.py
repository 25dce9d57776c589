"""Held times compared with a searched list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.flink.event_time import SPARE, MinTracker


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=80))
def test_minimum_of_times_not_removed(script: list[tuple[bool, int]]) -> None:
    held, model = MinTracker(), list[int]()
    for add, number in script:
        if add:
            held.add(number)
            model.append(number)
        elif model:
            held.remove(model.pop(number % len(model)))
        assert held.lowest == (min(model) if model else None)


def test_memory_is_proportional_to_held_times() -> None:
    held = MinTracker()
    for time_ms in range(1000):
        held.add(time_ms)
        if time_ms >= 10:
            held.remove(time_ms - 10)
    assert len(held._heap) <= 11


def test_long_held_time_does_not_retain_removed_ones() -> None:
    held = MinTracker()
    held.add(0)
    for time_ms in range(1, 100_000):
        held.add(time_ms)
        held.remove(time_ms)
        assert len(held._heap) <= SPARE + 3
    assert held.lowest == 0
