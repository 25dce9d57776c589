"""Callers that need the same status of a cluster share one request."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest
from tests.harness.clock import ManualClock

from forebay.clients.ray.instance import ServeInstance
from forebay.clients.ray.rest import FORGET_S, CachedPoll
from forebay.errors import DeployError


class Cluster:
    """A cluster that answers once it is allowed to."""

    def __init__(self, fails: bool = False) -> None:
        self.asked: Counter[str] = Counter()
        self.may_answer = threading.Event()
        self.was_asked = threading.Event()
        self._fails = fails

    async def look(self, address: str) -> ServeInstance:
        self.asked[address] += 1
        self.was_asked.set()
        await asyncio.to_thread(self.may_answer.wait, 30)
        if self._fails:
            raise DeployError("it is away")
        return ServeInstance({}, {"number": self.asked[address]})


async def test_a_look_serves_all_for_a_while() -> None:
    cluster, clock = Cluster(), ManualClock()
    cluster.may_answer.set()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    found = [await looks.instance("a", 0.5) for _ in range(3)]
    clock.advance(0.5)
    found.append(await looks.instance("a", 0.5))
    assert [each.settings["number"] for each in found] == [1, 1, 1, 2]
    await looks.instance("b", 0.5)
    assert cluster.asked == {"a": 2, "b": 1}


def test_threads_wait_for_the_one_that_looks() -> None:
    cluster, clock = Cluster(), ManualClock()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    found: list[ServeInstance] = []
    threads = [
        threading.Thread(target=lambda: found.append(asyncio.run(looks.instance("a", 0.5)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert cluster.was_asked.wait(30)
    cluster.may_answer.set()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    assert cluster.asked == {"a": 1}


async def test_a_failure_is_everybodys() -> None:
    cluster, clock = Cluster(fails=True), ManualClock()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    tasks = [asyncio.create_task(looks.instance("a", 0.5)) for _ in range(3)]
    await asyncio.sleep(0)
    cluster.may_answer.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(each) for each in found] == ["it is away"] * 3
    assert len({id(each) for each in found}) == 3
    assert cluster.asked == {"a": 1}


async def test_another_one_looks_where_the_first_is_cancelled() -> None:
    cluster, clock = Cluster(), ManualClock()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    first, second = (asyncio.create_task(looks.instance("a", 0.5)) for _ in range(2))
    for _ in range(3):
        await asyncio.sleep(0)
    first.cancel()
    cluster.may_answer.set()
    assert (await second).settings["number"] == 2
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_look_that_takes_long_is_waited_for() -> None:
    cluster, clock = Cluster(), ManualClock()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    first = asyncio.create_task(looks.instance("a", 0.5))
    await asyncio.sleep(0)
    clock.advance(9.0)
    second = asyncio.create_task(looks.instance("a", 0.5))
    await asyncio.sleep(0)
    cluster.may_answer.set()
    assert await first is await second
    assert cluster.asked == {"a": 1}


async def test_one_that_waits_may_be_cancelled_alone() -> None:
    cluster, clock = Cluster(), ManualClock()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    first, second, third = (asyncio.create_task(looks.instance("a", 0.5)) for _ in range(3))
    for _ in range(3):
        await asyncio.sleep(0)
    second.cancel()
    cluster.may_answer.set()
    assert await first is await third
    assert cluster.asked == {"a": 1}


async def test_a_look_that_never_ends_is_not_waited_for() -> None:
    cluster, clock = Cluster(), ManualClock()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    stuck = asyncio.create_task(looks.instance("a", 0.5))
    await asyncio.sleep(0)
    clock.advance(10.0)
    cluster.may_answer.set()
    assert (await looks.instance("a", 0.5)).settings["number"] == 2
    await stuck


async def test_clusters_that_nobody_asks_any_more_are_forgotten() -> None:
    cluster, clock = Cluster(), ManualClock()
    cluster.may_answer.set()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    for address in "abc":
        await looks.instance(address, 2 * FORGET_S)
    clock.advance(FORGET_S + 1)
    assert (await looks.instance("a", 2 * FORGET_S)).settings["number"] == 1, "there is nothing to poll again"
    await looks.instance("d", 1.0)
    await looks.instance("b", 2 * FORGET_S)
    assert cluster.asked == Counter({"b": 2, "a": 1, "c": 1, "d": 1})
