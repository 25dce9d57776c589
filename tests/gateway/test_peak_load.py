"""The peak of the gateway's load, by a clock that is set."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock

from forebay.gateway.peak_load import PEAK_S, PeakLoad


def test_short_request_between_two_reads_counts() -> None:
    clock = ManualClock()
    load = PeakLoad(clock)
    assert load.peak() == 0
    with load.request():
        clock.advance(0.2)
    clock.advance(PEAK_S - 1)
    assert load.peak() == 1
    clock.advance(2)
    assert load.peak() == 0


def test_long_request_counts_until_its_end() -> None:
    clock = ManualClock()
    load = PeakLoad(clock)
    with load.request(), ExitStack() as others:
        for _ in range(4):
            others.enter_context(load.request())
        clock.advance(10 * PEAK_S)
        others.close()
        assert load.peak() == 5
        clock.advance(2 * PEAK_S)
        assert load.peak() == 1


@given(st.lists(st.tuples(st.sampled_from((-1, 1)), st.integers(0, 40)), max_size=40))
def test_peak_is_the_maximum_of_the_window(steps: list[tuple[int, int]]) -> None:
    clock, counts = ManualClock(), [(0.0, 0)]
    load, open_ = PeakLoad(clock), list[ExitStack]()
    for by, after_s in steps:
        clock.advance(after_s)
        if by > 0:
            request = ExitStack()
            request.enter_context(load.request())
            open_.append(request)
        elif open_:
            open_.pop().close()
        counts.append((clock.monotonic_s(), len(open_)))
        ends = [*(at_s for at_s, _ in counts[1:]), clock.monotonic_s()]
        begin_s = clock.monotonic_s() - PEAK_S
        assert load.peak() == max(
            count for (_, count), end_s in zip(counts, ends, strict=True) if end_s >= begin_s
        )
