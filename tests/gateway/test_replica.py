"""When a call of one replica ends."""

from __future__ import annotations

import asyncio
import sys

import pytest

from forebay.gateway.replica import Lost, UntilLost

from .conftest import before


@pytest.mark.parametrize("outside", [False, True])
async def test_replica_is_lost_once_and_outside_cancellation_is_passed_on(outside: bool) -> None:
    """Each request of a replica that hangs is ended, also those that were cancelled before."""
    if sys.version_info < (3, 11):
        pytest.skip("tasks do not count their cancellations")
    async with before() as (served, _):
        fleet = served.gateway._fleet

        async def call() -> None:
            loop = asyncio.get_running_loop()
            async with fleet.place(fleet.demand("a", deadline_s=60.0), chars=1) as lease:
                with UntilLost(lease):
                    loop.call_soon(lease.mark_stalled, "it hangs")
                    loop.call_soon(task.cancel if outside else lease.mark_stalled, "it hangs")
                    await asyncio.Event().wait()

        task = asyncio.create_task(call())
        with pytest.raises(asyncio.CancelledError if outside else Lost):
            await task
        assert task.cancelled() == outside
        assert task.cancelling() == int(outside)
