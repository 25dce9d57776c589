"""The interval of a shard's poll timer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.flink.request_pool import PollInterval


@given(st.floats(0, 1e6))
def test_interval_is_a_bounded_share_of_a_call(call_s: float) -> None:
    pace = PollInterval(share=0.02, least_ms=1, most_ms=25)
    step = pace.step_ms(call_s)
    assert 1 <= step <= 25
    assert step in (1, 25) or abs(step - call_s * 20) <= 0.5


def test_interval_for_calls_of_known_length() -> None:
    assert [PollInterval().step_ms(s) for s in (0.0, 0.05, 0.5, 2.0)] == [1, 1, 10, 25]


@given(st.integers(0, 2**45), st.floats(0, 100))
def test_all_shards_poll_at_the_same_times(now_ms: int, call_s: float) -> None:
    pace = PollInterval()
    wake_ms, step_ms = pace.next_ms(now_ms, call_s), pace.step_ms(call_s)
    assert now_ms < wake_ms <= now_ms + step_ms
    assert wake_ms % step_ms == 0
