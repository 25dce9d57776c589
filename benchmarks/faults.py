"""Injects five faults into one of several replicas: is everything answered, and does the fleet
avoid that replica?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from forebay.errors import EngineError
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.engine import FleetEngine
from forebay.records import Request
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Faults, Fixed

FIRST_TOKEN_S = 0.02
FROZEN = "vllm:num_requests_running 200\nvllm:num_requests_waiting 150\nvllm:kv_cache_usage_perc 0.99\n"

Strike = Callable[[FakeReplica], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class FaultRun:
    fault: str
    requests: int
    answered: int
    in_time: int
    slowest_s: float
    calls_before: int
    calls_after: int
    others_after: int

    @property
    def passed(self) -> bool:
        return self.in_time == self.requests


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """`rate` requests per second; after a third of them, the replica with most requests gets the fault."""

    replicas: int = 4
    requests: int = 240
    rate: float = 100.0
    deadline_s: float = 5.0
    stall_s: float = 0.5


def _changed(**script: Any) -> Strike:
    async def strike(replica: FakeReplica) -> None:
        replica.script = replace(replica.script, **script)

    return strike


async def _kill(replica: FakeReplica) -> None:
    await replica.stop()


FAULTS: dict[str, Strike] = {
    "killed": _kill,
    "hung": _changed(faults=Faults((("hang", 1.0),))),
    "slow": _changed(delay=Fixed(10 * FIRST_TOKEN_S)),
    "503": _changed(faults=Faults((("503", 1.0),))),
    "frozen metrics": _changed(metrics=FROZEN),
}


def faults_document(settings: FaultSettings, runs: list[FaultRun]) -> dict[str, Any]:
    return {
        "settings": asdict(settings),
        "faults": [{**asdict(run), "passed": run.passed} for run in runs],
        "passed": all(run.passed for run in runs),
    }


async def run_fault(fault: str, settings: FaultSettings) -> FaultRun:
    """Send requests to a fleet while `fault`, one of `FAULTS`, affects one replica."""
    script = ReplicaScript(models=("fake",), delay=Fixed(FIRST_TOKEN_S))
    replicas = [FakeReplica(script) for _ in range(settings.replicas)]
    for replica in replicas:
        await replica.start()
    urls = tuple(replica.url for replica in replicas)
    config = FleetConfig(FixedReplicas(urls), model="fake", check_s=0.1, stall_s=settings.stall_s)
    engine = FleetEngine(config)
    try:
        return await _offer(fault, settings, engine, replicas)
    finally:
        await engine.close()
        for replica in replicas:
            await replica.stop()


async def _offer(
    fault: str, settings: FaultSettings, engine: FleetEngine, replicas: list[FakeReplica]
) -> FaultRun:
    def calls(replica: FakeReplica) -> int:
        return sum(replica.report().calls.values())

    await engine.client.start(settings.deadline_s)
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[float | None]] = []
    begun_s = loop.time()
    sick, before, others = replicas[0], 0, 0
    for number in range(settings.requests):
        await asyncio.sleep(max(0.0, begun_s + number / settings.rate - loop.time()))
        if number == settings.requests // 3:
            # All requests so far are at a replica, even if this process was delayed.
            while sum(map(calls, replicas)) < number and not all(task.done() for task in tasks):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            sick = max(replicas, key=calls)
            before = calls(sick)
            others = sum(map(calls, replicas)) - before
            await FAULTS[fault](sick)
        tasks.append(loop.create_task(_ask(engine, number, settings.deadline_s)))
    times = [time_s for time_s in await asyncio.gather(*tasks) if time_s is not None]
    return FaultRun(
        fault=fault,
        requests=settings.requests,
        answered=len(times),
        in_time=sum(time_s <= settings.deadline_s for time_s in times),
        slowest_s=max(times, default=0.0),
        calls_before=before,
        calls_after=calls(sick) - before,
        others_after=sum(map(calls, replicas)) - calls(sick) - others,
    )


async def _ask(engine: FleetEngine, number: int, deadline_s: float) -> float | None:
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    request = Request(id=f"r{number}", model="fake", prompt=f"a question of some length {number}")
    try:
        await engine.complete(request, timeout_s=deadline_s)
    except EngineError:
        return None
    return loop.time() - begun_s
