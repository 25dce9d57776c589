"""Decayed counts, and clocks driven by events alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.stateful.rates import (
    SILENT_EVENTS,
    SURE_EVENTS,
    ArrivalPace,
    EventClock,
    SlowestClock,
    decay,
    ratio,
    rise,
)

counts = st.floats(0, 1e6)
exposures = st.floats(1e-3, 1e9)


@example(3.0, 1.0, 5e-324, 2.0)
@given(counts, exposures, counts, exposures)
def test_evidence_is_finite_and_never_negative(k: float, n: float, b: float, m: float) -> None:
    found = float(rise(k, n, b, m))
    assert math.isfinite(found)
    # Of the least numbers that there are, a product has no digits left.
    assert found >= -1e-6 * (k + b) - 1e-300


@given(st.floats(0, 1e4), exposures, st.floats(1, 1e4), exposures)
def test_no_evidence_unless_the_share_has_risen(k: float, n: float, b: float, m: float) -> None:
    if k / n < b / m:
        assert rise(k, n, b, m) == 0


def test_rise_of_the_whole_stream_is_no_evidence() -> None:
    assert rise(50, 5000, 10, 1000) == pytest.approx(0)
    assert rise(50, 1000, 10, 1000) > 10


def test_a_known_value() -> None:
    # 20 against 5 at equal exposure: 20 ln(20/12.5) + 5 ln(5/12.5).
    assert float(rise(20, 100, 5, 100)) == pytest.approx(20 * math.log(1.6) + 5 * math.log(0.4))


def test_new_term_is_measured_by_the_streams_history() -> None:
    assert rise(8, 100, 0, 100_000) > 40
    assert rise(8, 100, 0, 1) < 1
    assert rise(8, 100, 0, 0) == 0


def test_history_excludes_the_present() -> None:
    pace = ArrivalPace()
    pace.add(10, 0, 1000, 100_000)
    assert (pace.recent, pace.history) == (10, 0)
    pace.add(0, 5000, 1000, 100_000)
    assert pace.recent == pytest.approx(10 / 32)
    assert pace.history == pytest.approx(10 * 0.5**0.05 - 10 / 32)


@given(st.floats(-1e15, 1e15), st.floats(1, 1e12))
def test_decay_stays_between_zero_and_one(elapsed: float, half_life: float) -> None:
    assert 0 <= decay(elapsed, half_life) <= 1


def test_ratio() -> None:
    assert ratio(10, 100, 10, 1000) == pytest.approx(10)
    assert ratio(1, 100, 0, 1000) == math.inf
    assert ratio(0, 100, 5, 1000) == 0


def test_single_outlying_events_do_not_move_the_clock() -> None:
    clock = EventClock()
    for second in range(100):
        clock.see(second * 1000)
        if second % 10 == 5:
            clock.see(-(10**12))
            clock.see(10**15)
    assert 75_000 < clock.now_ms < 99_000


HOUR_MS = 3_600_000
times = st.integers(-(10**12), 10**14)


@given(st.lists(times, max_size=80))
def test_single_partition_sets_the_clock(moments: list[int]) -> None:
    clock, one = SlowestClock(), EventClock()
    assert [clock.see(moment) for moment in moments] == [one.see(moment) for moment in moments]


@given(st.lists(st.tuples(times, st.sampled_from(["", "t/0", "t/1"])), max_size=80), st.integers(0, 80))
def test_clock_continues_from_its_state(events: list[tuple[int, str]], at: int) -> None:
    clock, other = SlowestClock(), SlowestClock()
    for number, event in enumerate(events):
        if number == at:
            other = SlowestClock.restore(other.state())
        assert clock.see(*event) == other.see(*event)


def test_alternating_partitions_do_not_move_the_clock_back() -> None:
    clock, seen = SlowestClock(), []
    for batch in range(40):
        for number in range(500):
            ahead_ms = 5 * HOUR_MS if batch % 2 else 0
            seen.append(clock.see(ahead_ms + 500 * (batch // 2) + number, f"t/{batch % 2}"))
    assert max(seen) < HOUR_MS


def test_first_event_of_a_partition_does_not_move_the_clock_back() -> None:
    clock = SlowestClock()
    for second in range(100):
        clock.see(HOUR_MS + 1000 * second, "t/0")
    for number in range(SURE_EVENTS):
        assert clock.see(0 if number < 4 else HOUR_MS, "t/1") >= HOUR_MS


def test_silent_partition_is_not_waited_for() -> None:
    clock = SlowestClock()
    for second in range(50):
        clock.see(second, "t/0")
        clock.see(second, "t/1")
    seen = [clock.see(HOUR_MS + number, "t/0") for number in range(2 * SILENT_EVENTS + 1)]
    assert seen[-2] < HOUR_MS <= seen[-1]
