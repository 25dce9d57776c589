from __future__ import annotations

import pytest
from tests.harness.clock import ManualClock
from tests.harness.keyed_state import Room

from forebay.connectors.python_source import MAX_WAIT_S, WAIT_S, CallLimit, IdleWait


def test_call_ends_if_there_is_no_room() -> None:
    call = CallLimit(Room(True, True, False, True), clock=ManualClock())
    call.begin()
    assert [call.reached() for _ in range(4)] == [False, False, True, False]


def test_a_long_call_ends_and_the_next_has_its_own_limit() -> None:
    clock = ManualClock()
    call = CallLimit(Room(), most_s=0.05, clock=clock)
    for _ in range(2):
        call.begin()
        clock.advance(0.04)
        assert not call.reached()
        clock.advance(0.02)
        assert call.reached()


def test_a_source_without_records_waits_longer_up_to_a_bound() -> None:
    clock = ManualClock()
    idle = IdleWait(clock)
    assert idle.wait_s() == WAIT_S
    waits = []
    for _ in range(200):
        clock.advance(idle.wait_s())
        waits.append(idle.wait_s())
    assert waits == sorted(waits)
    assert waits[-1] == MAX_WAIT_S
    idle.came()
    assert idle.wait_s() == WAIT_S
    clock.advance(1.0)
    assert idle.wait_s() == pytest.approx(0.05)
