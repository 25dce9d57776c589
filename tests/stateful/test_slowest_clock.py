"""The clock of topics: the slowest partition's, despite wrong times and silent partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.stateful.rates import SILENT_EVENTS, SURE_EVENTS, EventClock, SlowestClock

HOUR_MS = 3_600_000
times = st.integers(-(10**12), 10**14)


@given(st.lists(times, max_size=80))
def test_with_one_partition_it_is_that_ones_clock(moments: list[int]) -> None:
    clock, one = SlowestClock(), EventClock()
    assert [clock.see(moment) for moment in moments] == [one.see(moment) for moment in moments]


@given(st.lists(st.tuples(times, st.sampled_from(["", "t/0", "t/1"])), max_size=80), st.integers(0, 80))
def test_it_continues_as_before_from_its_state(events: list[tuple[int, str]], at: int) -> None:
    clock, other = SlowestClock(), SlowestClock()
    for number, event in enumerate(events):
        if number == at:
            other = SlowestClock.restore(other.state())
        assert clock.see(*event) == other.see(*event)


def test_batches_of_partitions_that_are_apart_do_not_move_it_to_and_fro() -> None:
    clock, seen = SlowestClock(), []
    for batch in range(40):
        for number in range(500):
            ahead_ms = 5 * HOUR_MS if batch % 2 else 0
            seen.append(clock.see(ahead_ms + 500 * (batch // 2) + number, f"t/{batch % 2}"))
    assert max(seen) < HOUR_MS


def test_the_first_event_of_a_partition_does_not_take_it_back() -> None:
    clock = SlowestClock()
    for second in range(100):
        clock.see(HOUR_MS + 1000 * second, "t/0")
    for number in range(SURE_EVENTS):
        assert clock.see(0 if number < 4 else HOUR_MS, "t/1") >= HOUR_MS


def test_a_partition_that_is_silent_is_waited_for_no_longer() -> None:
    clock = SlowestClock()
    for second in range(50):
        clock.see(second, "t/0")
        clock.see(second, "t/1")
    seen = [clock.see(HOUR_MS + number, "t/0") for number in range(2 * SILENT_EVENTS + 1)]
    assert seen[-2] < HOUR_MS <= seen[-1]
