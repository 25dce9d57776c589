"""Each fault in small: all is answered in time, and the faulty replica gets few requests."""

from __future__ import annotations

import pytest
from benchmarks.faults import FaultSettings, faults_document, run_fault

# Long waits, because this process may be delayed itself, which is not a replica's fault.
SETTINGS = FaultSettings(requests=240, deadline_s=60.0, stall_s=3.0)


@pytest.mark.parametrize(
    ("fault", "at_most"),
    # In flight when it strikes, then what it takes to shut the replica, then one at each trial.
    [("killed", 5), ("hung", 30), ("slow", 40), ("503", 10), ("frozen metrics", 160)],
)
async def test_one_sick_replica_harms_nobody(fault: str, at_most: int) -> None:
    run = await run_fault(fault, SETTINGS)
    assert (run.answered, run.in_time) == (SETTINGS.requests, SETTINGS.requests)
    assert run.calls_before >= SETTINGS.requests / 3 / SETTINGS.replicas / 2, (
        "it had its share while it was well"
    )
    assert run.calls_after <= at_most
    assert run.others_after >= SETTINGS.requests * 2 / 3 - at_most


async def test_a_request_that_is_not_answered_in_time_is_no_pass() -> None:
    settings = FaultSettings(replicas=2, requests=30, deadline_s=0.001)
    run = await run_fault("frozen metrics", FaultSettings(replicas=2, requests=30))
    assert run.passed
    late = type(run)(**{**{name: getattr(run, name) for name in run.__slots__}, "in_time": 29})
    assert not faults_document(settings, [run, late])["passed"]
