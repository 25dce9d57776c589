"""A stream is sent at the pace of an engine, not of a flood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.replica import STREAM_BURST_BYTES, STREAM_BYTES_PER_S, StreamPace


@given(st.lists(st.integers(1, 1 << 22), min_size=1, max_size=50), st.floats(0, 1e6))
def test_flood_is_relayed_at_the_pace(sizes: list[int], began_s: float) -> None:
    """Also if it begins after a long silence."""
    pace, now_s = StreamPace(), began_s
    for size in sizes:
        now_s += pace.wait_s(size, now_s)
    least_s = max(0, sum(sizes) - STREAM_BURST_BYTES) / STREAM_BYTES_PER_S
    assert now_s - began_s == pytest.approx(least_s, abs=1e-6)


def test_flood_after_slow_tokens_has_the_same_burst() -> None:
    pace = StreamPace()
    assert not any(pace.wait_s(4096, n / 300) for n in range(10_000))
    now_s = 10_000 / 300
    assert pace.wait_s(10 << 20, now_s) == pytest.approx(
        ((10 << 20) - STREAM_BURST_BYTES) / STREAM_BYTES_PER_S, abs=0.01
    )
