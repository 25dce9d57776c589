"""The step of a shard's timer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay.operators.pace import Pace


@given(st.floats(0, 1e6))
def test_a_step_is_a_share_of_a_call_within_its_bounds(call_s: float) -> None:
    pace = Pace(share=0.02, least_ms=1, most_ms=25)
    step = pace.step_ms(call_s)
    assert 1 <= step <= 25
    assert step in (1, 25) or abs(step - call_s * 20) <= 0.5


def test_a_step_for_calls_of_a_known_length() -> None:
    assert [Pace().step_ms(s) for s in (0.0, 0.05, 0.5, 2.0)] == [1, 1, 10, 25]
