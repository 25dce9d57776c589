"""Deadlines of events by class of service."""

from __future__ import annotations

import pytest
from tests.harness.clock import ManualClock

from forebay.fleet.autoscale.base import ServiceClass
from forebay.flink.service_class import due_s
from forebay.records import Event, KeyedEvent

ALARM = ServiceClass("alarm", 5.0)


@pytest.mark.parametrize(
    ("age_ms", "due"), [(0, 1005), (1, 1004), (999, 1004), (1001, 1003), (60_000, 945), (-3_600_000, 1005)]
)
def test_deadline_is_read_time_plus_slo_in_whole_seconds(age_ms: int, due: int) -> None:
    """Priority decides among requests due in the same second: exact times would all differ."""
    clock = ManualClock(monotonic_s=1000.0, wall_ms=1_700_000_000_000)
    event = KeyedEvent("r", "", Event(b"", {}), read_ms=clock.wall_ms() - age_ms)
    assert due_s(event, ALARM, clock) == due
