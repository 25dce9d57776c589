"""Waiting polls often at first, and never uses much of the processor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.testing.waiting import pause_s, wait_until


def test_wait_returns_once_the_condition_holds() -> None:
    looks = iter([False, False, True])
    wait_until(lambda: next(looks))
    assert list(looks) == []


def test_failed_wait_reports_the_last_state() -> None:
    with pytest.raises(AssertionError, match="did not come true within 0 s: nothing"):
        wait_until(lambda: False, 0.0, describe=lambda: "nothing")


@given(st.floats(0, 1e3), st.floats(0, 1e3))
def test_polls_use_a_fifth_of_the_time_at_most(look_s: float, waited_s: float) -> None:
    found = pause_s(look_s, waited_s)
    assert 0.01 <= found <= 0.5
    assert found == 0.5 or look_s <= (look_s + found) * 0.2 * (1 + 1e-9)


def test_polls_become_rarer_with_time() -> None:
    assert [pause_s(0.0, waited_s) for waited_s in (0.0, 0.5, 1.0, 5.0, 100.0)] == [
        0.01,
        0.01,
        0.02,
        0.1,
        0.1,
    ]
