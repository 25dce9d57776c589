"""The machine's clocks."""

from __future__ import annotations

from forebay.clock import SystemClock


def test_monotonic_time_does_not_go_back_and_wall_time_is_of_this_century() -> None:
    clock = SystemClock()
    moments = [clock.monotonic_s() for _ in range(100)]
    assert moments == sorted(moments)
    assert 1_700_000_000_000 < clock.wall_ms() < 4_102_444_800_000
