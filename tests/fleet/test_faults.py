"""One replica of four goes wrong in mid-run: all is answered in time, and the sick one is left alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forebay.testing.delays import Fixed
from forebay.testing.faults import Faults

COUNT = 240
EVERY_S = 0.01
DEADLINE_S = 5.0
FROZEN = "vllm:num_requests_running 200\nvllm:num_requests_waiting 150\nvllm:kv_cache_usage_perc 0.99\n"


async def answer_all(fakes: Any, ask: Any, fault: Any) -> tuple[list[float], int]:
    """Requests at a steady pace; `fault` strikes at a third. Gives their times, and its calls then."""
    loop = asyncio.get_running_loop()

    async def one(number: int) -> float:
        began_s = loop.time()
        completion = await fakes.engine.complete(ask(number), timeout_s=DEADLINE_S)
        assert completion.text
        return loop.time() - began_s

    tasks = []
    at_fault = 0
    for number in range(COUNT):
        if number == COUNT // 3:
            at_fault = fakes.calls(0)
            fault = fault(fakes)
            if fault is not None:
                await fault
        tasks.append(asyncio.ensure_future(one(number)))
        await asyncio.sleep(EVERY_S)
    return await asyncio.gather(*tasks), at_fault


@pytest.mark.parametrize(
    ("fault", "at_most"),
    [
        (lambda f: f.replicas[0].stop(), None),
        (lambda f: f.change(0, faults=Faults((("hang", 1.0),))), 30),
        (lambda f: f.change(0, delay=Fixed(0.2)), 30),
        (lambda f: f.change(0, faults=Faults((("503", 1.0),))), 8),
        (lambda f: f.change(0, metrics=FROZEN), None),
    ],
    ids=["killed", "hung", "slow", "503", "frozen"],
)
async def test_one_sick_replica_harms_nobody(
    fleet_of: Any, ask: Any, fault: Any, at_most: int | None
) -> None:
    async with fleet_of(4) as fakes:
        times, before = await answer_all(fakes, ask, fault)
        after = fakes.calls(0) - before
    assert max(times) < DEADLINE_S
    assert before >= COUNT / 3 / 8, "it had its share while it was well"
    if at_most is not None:
        assert after <= at_most
