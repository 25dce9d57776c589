"""Which time starts a record's deadline."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from forebay.engine import Deadline


def test_waiting_for_an_engine_that_works_does_not_count() -> None:
    deadline = Deadline(300.0)
    deadline.wait(0.0, counts=False)
    assert deadline.left_s(1e6) == 300.0
    deadline.begin(1e6)
    assert deadline.left_s(1e6 + 100.0) == 200.0
    assert deadline.begun_s == 1e6


def test_waiting_while_nothing_can_take_it_counts_as_long_as_it_lasts() -> None:
    deadline = Deadline(300.0)
    deadline.wait(10.0, counts=True)
    deadline.wait(20.0, counts=True)
    assert deadline.left_s(30.0) == 280.0
    deadline.wait(30.0, counts=False)
    assert deadline.left_s(1000.0) == 280.0
    deadline.wait(1000.0, counts=True)
    deadline.begin(1010.0)
    assert deadline.left_s(1020.0) == 260.0


def test_from_the_first_call_on_it_counts_for_good() -> None:
    deadline = Deadline(300.0)
    deadline.begin(5.0)
    deadline.wait(10.0, counts=False)
    deadline.begin(20.0)
    assert deadline.left_s(105.0) == 200.0
    assert deadline.begun_s == 5.0


def test_without_end_there_is_always_time() -> None:
    deadline = Deadline()
    deadline.begin(5.0)
    assert deadline.left_s(1e9) == math.inf


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from(("counts", "not", "begin"))), max_size=30))
def test_it_never_grows_and_shrinks_by_no_more_than_time_has_passed(steps: list[tuple[float, str]]) -> None:
    deadline, now_s, left_s = Deadline(1000.0), 0.0, 1000.0
    for after_s, what in steps:
        now_s += after_s
        before_s, left_s = left_s, deadline.left_s(now_s)
        assert before_s - after_s - 1e-6 <= left_s <= before_s
        if what == "begin":
            deadline.begin(now_s)
        else:
            deadline.wait(now_s, counts=what == "counts")
        assert abs(deadline.left_s(now_s) - left_s) < 1e-6
