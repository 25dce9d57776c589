from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.slowdown import GOOD, MAX_THROWN_AWAY, REPLICAS, SPEEDS
from tests.harness.backlog import Load
from tests.harness.clock import in_virtual_time, run_virtual

from forebay.testing.script import Faults

pytestmark = [pytest.mark.slow, pytest.mark.long]

SETTLE_S = 20.0


@pytest.mark.parametrize("kind", REPLICAS)
def test_engine_fifty_times_slower_stays_full_and_loses_nothing(kind: str) -> None:
    # If each request slows the others, half as many get nearly as much done: that is hard to detect.
    least = 0.85 if REPLICAS[kind].crowding else GOOD

    async def main() -> None:
        async with Load(REPLICAS[kind]) as load:
            for speed in SPEEDS:
                load.replica.speed = speed
                await load.run(SETTLE_S)
                assert await load.run(100.0) >= least, speed
            assert load.thrown_away() <= MAX_THROWN_AWAY
            assert not load.failed

    run_virtual(main())


@pytest.mark.parametrize("first", [200_000, 300_000, 900_000])
@in_virtual_time
async def test_probing_fewer_requests_costs_under_a_tenth_of_throughput(first: int) -> None:
    async with Load(REPLICAS["whole"], first=first) as load:
        for speed in SPEEDS:
            load.replica.speed = speed
            await load.run(SETTLE_S)
            assert await load.run(100.0) >= GOOD, speed


@pytest.mark.parametrize("kind", ["streaming", "whole"])
@in_virtual_time
async def test_engine_queue_ends_up_nearly_empty(kind: str) -> None:
    async with Load(REPLICAS[kind], capacity=200) as load:
        await load.run(240.0)
        load.held = 0
        await load.run(60.0)
        assert 16 <= load.held <= 48


@pytest.mark.parametrize("kind", ["streaming", "whole"])
@in_virtual_time
async def test_initially_slow_engine_is_soon_full(kind: str) -> None:
    async with Load(REPLICAS[kind]) as load:
        load.replica.speed = 1 / 50
        await load.run(100.0)
        assert await load.run(100.0) >= GOOD
        assert not load.thrown_away()


@pytest.mark.parametrize("kind", ["streaming", "whole"])
@in_virtual_time
async def test_hanging_requests_are_repeated_and_others_continue(kind: str) -> None:
    async with Load(replace(REPLICAS[kind], faults=Faults((("hang", 0.002),)))) as load:
        # Each takes a slot until it is given up, for a minute or more.
        assert await load.run(300.0) >= 0.7
        assert load.thrown_away() <= MAX_THROWN_AWAY
        assert not load.failed


@pytest.mark.parametrize("kind", ["streaming", "whole"])
@in_virtual_time
async def test_outage_costs_few_calls_and_recovery_is_prompt(kind: str) -> None:
    async with Load(REPLICAS[kind]) as load:
        await load.run(60.0)
        calls = load.replica.work().calls
        load.replica.down = True
        await load.run(200.0)
        assert load.replica.work().calls - calls <= 10
        load.replica.down = False
        await load.run(40.0)
        assert await load.run(60.0) >= GOOD
        assert not load.failed


@in_virtual_time
async def test_engine_that_fails_every_call_is_not_called_more_and_more() -> None:
    async with Load(replace(REPLICAS["whole"], faults=Faults((("500", 1.0),)))) as load:
        await load.run(60.0)
        first = load.replica.work().calls
        await load.run(60.0)
        calls = load.replica.work().calls - first
        assert calls <= 120, "two in a second, of 64 events that all fail"


@in_virtual_time
async def test_rate_limited_engine_gets_nearly_its_rate() -> None:
    script = replace(REPLICAS["whole"], calls_per_s=10.0, calls_at_once=4)
    async with Load(script) as load:
        await load.run(60.0)
        before = load.replica.work().answers
        await load.run(60.0)
        assert load.replica.work().answers - before >= 0.75 * 600
        assert not load.failed


@in_virtual_time
async def test_impossible_deadline_is_reported_without_crowding_the_engine() -> None:
    async with Load(REPLICAS["whole"], deadline_s=10.0, timeout_s=10.0) as load:
        await load.run(30.0)
        load.replica.speed = 1 / 50
        await load.run(120.0)
        assert set(load.failed) == {"timeout"}
        load.held = 0
        await load.run(60.0)
        assert load.held <= 8
        load.replica.speed = 1.0
        await load.run(60.0)
        before = sum(load.failed.values())
        assert await load.run(60.0) >= GOOD
        assert sum(load.failed.values()) == before


@in_virtual_time
async def test_waiting_for_room_does_not_use_a_records_time() -> None:
    script = replace(REPLICAS["whole"], slots=1)
    async with Load(script, capacity=200, deadline_s=20.0, timeout_s=20.0) as load:
        # 200 events at two in a second: the last of them waits for 100 s.
        await load.run(200.0)
        assert load.replica.work().answers >= 300
        assert not load.failed
