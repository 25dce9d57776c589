"""A stream is sent at the pace of an engine, not of a flood."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.replica import STREAM_BURST_BYTES, STREAM_BYTES_PER_S, StreamPace


@given(st.lists(st.integers(1, 1 << 22), min_size=1, max_size=50))
def test_flood_is_sent_at_the_pace(sizes: list[int]) -> None:
    pace, now_s = StreamPace(0.0), 0.0
    for size in sizes:
        now_s += pace.wait_s(size, now_s)
    assert now_s <= max(0, sum(sizes) - STREAM_BURST_BYTES) / STREAM_BYTES_PER_S + 1e-9
    assert now_s >= (sum(sizes) - STREAM_BURST_BYTES) / STREAM_BYTES_PER_S - 1e-9


def test_tokens_do_not_wait() -> None:
    pace = StreamPace(0.0)
    assert not any(pace.wait_s(4096, n / 300) for n in range(10_000))
