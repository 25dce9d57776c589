from __future__ import annotations

from tests.harness.clock import ManualClock
from tests.harness.keyed_state import Room

from forebay.connectors.python_source import CallLimit


def test_a_call_ends_where_there_is_no_room() -> None:
    call = CallLimit(Room(True, True, False, True), clock=ManualClock())
    call.begin()
    assert [call.reached() for _ in range(4)] == [False, False, True, False]


def test_a_call_ends_when_it_has_lasted_for_long_and_the_next_has_its_own_time() -> None:
    clock = ManualClock()
    call = CallLimit(Room(), most_s=0.05, clock=clock)
    for _ in range(2):
        call.begin()
        clock.advance(0.04)
        assert not call.reached()
        clock.advance(0.02)
        assert call.reached()
