"""Which records advance a stream's clock."""

from __future__ import annotations

import pytest
from tests.harness.clock import ManualClock

from forebay.codec import encode
from forebay.flink.event_time import AHEAD_MS, NO_TIME_MS, RecordTime
from forebay.records import Event


@pytest.mark.parametrize(
    ("time_ms", "moves"),
    [(1_000, True), (10_000 + AHEAD_MS, True), (10_001 + AHEAD_MS, False), (None, False), (-5, True)],
)
def test_time_far_ahead_does_not_move_the_clock(time_ms: int | None, moves: bool) -> None:
    record = encode(Event(b"", {}, time_ms))
    ((data, time),) = RecordTime(ManualClock(wall_ms=10_000)).process_element(record, None)
    assert data == record
    assert time == (time_ms if moves else NO_TIME_MS)
