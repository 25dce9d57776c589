from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from forebay.engine import Deadline
from forebay.errors import EngineError
from forebay.testing.script import Faults


async def test_one_that_is_well_again_gets_its_share_again(fleet_of: Any, ask: Any, wait_for: Any) -> None:
    async with fleet_of(2) as fakes:
        await fakes.engine.client.start(60.0)
        for number in range(2):
            fakes.change(number, faults=Faults((("503", 1.0),)))
        failed = await asyncio.gather(
            *(
                fakes.engine.complete(ask(number), timeout_s=60.0, deadline=Deadline(0.1))
                for number in range(9)
            ),
            return_exceptions=True,
        )
        assert all(isinstance(error, EngineError) for error in failed)
        for number in range(2):
            fakes.change(number, faults=Faults())
        before = [fakes.calls(number) for number in range(2)]
        numbers = iter(range(100, 10_000))

        async def again() -> None:
            while min(fakes.calls(number) - before[number] for number in range(2)) < 20:
                await fakes.engine.complete(ask(next(numbers)), timeout_s=60.0)

        await asyncio.wait_for(asyncio.gather(*(again() for _ in range(4))), 180.0)


async def test_metrics_that_lie_do_not_stop_the_stream(
    fleet_of: Any, ask: Any, wait_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.fleet.health.UNPROVEN_S", math.inf)
    async with fleet_of(2) as fakes:
        await fakes.engine.client.start(60.0)
        for number in range(20):
            await fakes.engine.complete(ask(number), timeout_s=60.0)
        lies = iter(range(1000, 1_000_000))
        for replica in fakes.replicas:
            replica._metrics = lambda: f"vllm:num_requests_waiting {next(lies)}\n"
        fleet, members = fakes.engine.client.fleet, fakes.engine.client._membership
        await wait_for(lambda: min(fleet.external) >= 100)
        numbers = iter(range(100, 10_000))
        while all(replica._reports.credible for replica in members.rows.values()):
            await fakes.engine.complete(ask(next(numbers)), timeout_s=60.0)
        await wait_for(lambda: min(fleet.external) == 0)
