"""Which records move a stream's clock."""

from __future__ import annotations

import pytest
from tests.harness.clock import ManualClock

from forebay.codec import encode
from forebay.flink.watermarks import NO_TIME_MS, RecordTime
from forebay.records import Event


@pytest.mark.parametrize(
    ("time_ms", "ahead_ms", "moves"),
    [
        (1_000, 500, True),
        (10_500, 500, True),
        (10_501, 500, False),
        (10**15, None, True),
        (None, 500, False),
        (-5, 500, True),
    ],
)
def test_a_time_too_far_ahead_of_the_clock_moves_nothing(
    time_ms: int | None, ahead_ms: int | None, moves: bool
) -> None:
    record = encode(Event(b"", {}, time_ms))
    ((data, time),) = RecordTime(ahead_ms, ManualClock(wall_ms=10_000)).process_element(record, None)
    assert data == record
    assert time == (time_ms if moves else NO_TIME_MS)
