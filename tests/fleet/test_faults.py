from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from forebay.engine import Deadline
from forebay.errors import EngineError
from forebay.testing.script import Faults, Fixed

pytestmark = pytest.mark.heavy


async def test_recovered_replica_gets_its_share_again(fleet_of: Any, ask: Any, wait_for: Any) -> None:
    async with fleet_of(2) as fakes:
        await fakes.up()
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


async def test_wrong_metrics_do_not_stop_the_stream(
    fleet_of: Any, ask: Any, wait_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.fleet.health.UNPROVEN_S", math.inf)
    async with fleet_of(2) as fakes:
        await fakes.up()
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


FROZEN = "vllm:num_requests_running 200\nvllm:num_requests_waiting 150\nvllm:kv_cache_usage_perc 0.99\n"


@pytest.mark.parametrize(
    ("fault", "at_most"),
    # In flight when it strikes, then what it takes to shut the replica, then one at each trial.
    [
        (None, 5),
        ({"faults": Faults((("hang", 1.0),))}, 30),
        ({"delay": Fixed(0.2)}, 40),
        ({"faults": Faults((("503", 1.0),))}, 10),
        ({"metrics": FROZEN}, 40),
    ],
    ids=["killed", "hung", "slow", "503", "frozen metrics"],
)
async def test_one_sick_replica_of_four_harms_no_request(
    fault: dict[str, Any] | None, at_most: int, fleet_of: Any, ask: Any
) -> None:
    async with fleet_of(4, stall_s=3.0) as fakes:
        await fakes.up()
        numbers, sick, before = iter(range(240)), 0, [0] * 4

        async def work() -> None:
            nonlocal sick, before
            for number in numbers:
                if number == 80:
                    before = list(map(fakes.calls, range(4)))
                    assert min(before) > 0
                    sick = before.index(max(before))
                    if fault is None:
                        await fakes.replicas[sick].stop()
                    else:
                        fakes.change(sick, **fault)
                await fakes.engine.complete(ask(number), timeout_s=60.0)

        await asyncio.gather(*(work() for _ in range(8)))
        after = [fakes.calls(number) - before[number] for number in range(4)]
        assert after[sick] <= at_most
        assert sum(after) - after[sick] >= 160 - at_most
