"""How many requests a replica gets that refuses some."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from forebay.fleet.replicas.refusals import CALLS, IGNORE_S, Refusals


def test_one_that_never_refuses_gets_as_many_as_there_are() -> None:
    refusals = Refusals()
    for _ in range(100):
        refusals.answered()
    assert refusals.most == math.inf


def test_for_want_of_room_there_are_a_few_less_and_for_the_rate_half() -> None:
    room, rate = Refusals(), Refusals()
    room.refused(40, 0.0, rate=False)
    rate.refused(40, 0.0, rate=True)
    assert (room.most, rate.most) == (36.0, 20.0)


def test_with_each_round_of_answers_there_may_be_one_more() -> None:
    refusals = Refusals()
    refusals.refused(20, 0.0, rate=True)
    for _ in range(11):
        refusals.answered()
    assert 10.9 < refusals.most < 11.1


def test_far_past_where_it_refused_it_is_forgotten() -> None:
    refusals = Refusals()
    refusals.refused(4, 0.0, rate=True)
    for _ in range(60):
        refusals.answered()
    assert refusals.most == math.inf


def test_one_that_refuses_as_many_of_fewer_refuses_them_for_another_reason() -> None:
    refusals = Refusals()
    for call in range(4 * CALLS):
        if call % 3:
            refusals.answered()
        else:
            refusals.refused(int(min(refusals.most, 16)), float(call), rate=False)
    assert refusals.most == math.inf
    refusals.refused(16, 60.0, rate=False)
    assert refusals.most == math.inf, "for a minute nothing follows from it"
    refusals.refused(16, 4 * CALLS + IGNORE_S, rate=False)
    assert refusals.most < 16


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 500)), max_size=300))
def test_there_is_always_at_least_one(events: list[tuple[bool, bool, int]]) -> None:
    refusals = Refusals()
    for now_s, (refused, rate, there) in enumerate(events):
        if refused:
            refusals.refused(there, float(now_s), rate=rate)
        else:
            refusals.answered()
        assert refusals.most >= 1
