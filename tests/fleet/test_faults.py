"""One replica of four goes wrong in mid-run: all is answered in time, and the sick one is left alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forebay.errors import EngineError
from forebay.fleet.replicas.reports import UNPROVEN_S
from forebay.testing.delays import Fixed
from forebay.testing.faults import Faults

COUNT = 240
EVERY_S = 0.01
DEADLINE_S = 5.0
FROZEN = "vllm:num_requests_running 200\nvllm:num_requests_waiting 150\nvllm:kv_cache_usage_perc 0.99\n"


async def answer_all(fakes: Any, ask: Any, fault: Any) -> tuple[list[float], int, int]:
    """Requests at a steady pace; a third of them in, `fault` strikes the replica that has had most.

    Gives the times, and how many requests that one had had and got from then on.
    """
    loop = asyncio.get_running_loop()

    async def one(number: int) -> float:
        began_s = loop.time()
        completion = await fakes.engine.complete(ask(number), timeout_s=DEADLINE_S)
        assert completion.text
        return loop.time() - began_s

    tasks = []
    sick = before = 0
    for number in range(COUNT):
        if number == COUNT // 3:
            before, sick = max((fakes.calls(number), number) for number in range(4))
            await fault(fakes, sick)
        tasks.append(asyncio.ensure_future(one(number)))
        await asyncio.sleep(EVERY_S)
    return await asyncio.gather(*tasks), before, fakes.calls(sick) - before


async def kill(fakes: Any, sick: int) -> None:
    await fakes.replicas[sick].stop()


def change(**script: Any) -> Any:
    async def apply(fakes: Any, sick: int) -> None:
        fakes.change(sick, **script)

    return apply


@pytest.mark.parametrize(
    ("fault", "at_most", "at_least"),
    [
        # In flight when it struck, then those that shut it, then one at each trial.
        (kill, 0, 0),
        (change(faults=Faults((("hang", 1.0),))), 30, 1),
        (change(delay=Fixed(0.2)), 40, 1),
        (change(faults=Faults((("503", 1.0),))), 10, 1),
        (change(metrics=FROZEN), COUNT, 0),
    ],
    ids=["killed", "hung", "slow", "503", "frozen"],
)
async def test_one_sick_replica_harms_nobody(
    fleet_of: Any, ask: Any, fault: Any, at_most: int, at_least: int
) -> None:
    async with fleet_of(4) as fakes:
        times, before, after = await answer_all(fakes, ask, fault)
    assert len(times) == COUNT
    assert max(times) < DEADLINE_S
    assert before >= COUNT / 3 / 4, "it had its share while it was well"
    assert at_least <= after <= at_most


async def test_one_that_is_well_again_gets_its_share_again(fleet_of: Any, ask: Any, wait_for: Any) -> None:
    async with fleet_of(2) as fakes:
        await fakes.engine.client.start(5.0)
        for number in range(2):
            fakes.change(number, faults=Faults((("503", 1.0),)))
        failed = await asyncio.gather(
            *(fakes.engine.complete(ask(number), timeout_s=5.0, deadline_s=0.1) for number in range(9)),
            return_exceptions=True,
        )
        assert all(isinstance(error, EngineError) for error in failed)
        for number in range(2):
            fakes.change(number, faults=Faults())
        before = [fakes.calls(number) for number in range(2)]
        numbers = iter(range(100, 10_000))

        async def again() -> None:
            while min(fakes.calls(number) - before[number] for number in range(2)) < 20:
                await fakes.engine.complete(ask(next(numbers)), timeout_s=20.0)

        await asyncio.wait_for(asyncio.gather(*(again() for _ in range(4))), 60.0)


async def test_metrics_that_lie_do_not_stop_the_stream(fleet_of: Any, ask: Any, wait_for: Any) -> None:
    """All claim long queues, new ones each time: what comes shows that it is not so."""
    async with fleet_of(2) as fakes:
        await fakes.engine.client.start(5.0)
        for number in range(20):
            await fakes.engine.complete(ask(number), timeout_s=5.0)
        lies = iter(range(1000, 1_000_000))
        for replica in fakes.replicas:
            replica._metrics = lambda: f"vllm:num_requests_waiting {next(lies)}\n"
        fleet, members = fakes.engine.client.fleet, fakes.engine.client._members
        await wait_for(lambda: min(fleet.foreign) >= 100)
        numbers = iter(range(100, 10_000))
        while all(member.reports.believed for member in members.rows.values()):
            await fakes.engine.complete(ask(next(numbers)), timeout_s=UNPROVEN_S / 2)
        await wait_for(lambda: min(fleet.foreign) == 0)
