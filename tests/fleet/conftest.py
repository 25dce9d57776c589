from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.harness.engines import calls_of

from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.engine import FleetEngine
from forebay.fleet.health import HealthRules
from forebay.records import Request
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Fixed

QUICK = ReplicaScript(models=("m",), delay=Fixed(0.02))
RULES = HealthRules(first_wait_s=0.2, max_wait_s=1.0)


def request(number: int | str, text: str = "a question of some length", **more: Any) -> Request:
    return Request(id=f"r{number}", model="m", prompt=f"{text} {number}", **more)


async def until(condition: Callable[[], bool], timeout_s: float = 180.0) -> None:
    end_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < end_s, "the condition did not come true"
        await asyncio.sleep(0.005)


class Fakes:
    def __init__(self, replicas: list[FakeReplica], engine: FleetEngine) -> None:
        self.replicas = replicas
        self.engine = engine

    def change(self, number: int, **script: Any) -> None:
        replica = self.replicas[number]
        replica.script = replace(replica.script, **script)

    def calls(self, number: int) -> int:
        return calls_of(self.replicas[number])

    async def up(self) -> None:
        await self.engine.client.start(60.0)
        text = self.engine.client.replicas
        await until(lambda: all(text().get(replica.url) == "" for replica in self.replicas))


@asynccontextmanager
async def open_fleet(
    count: int = 3, script: ReplicaScript = QUICK, *, dead: tuple[str, ...] = (), **config: Any
) -> AsyncIterator[Fakes]:
    replicas = [FakeReplica(script) for _ in range(count)]
    for replica in replicas:
        await replica.start()
    settings = {
        "replicas": FixedReplicas((*dead, *(replica.url for replica in replicas))),
        "model": "m",
        "check_s": 0.05,
        # Long, because this process itself may be held up.
        "check_timeout_s": 60.0,
        "stall_s": 60.0,
        "health": RULES,
    }
    engine = FleetEngine(FleetConfig(**{**settings, **config}))
    try:
        yield Fakes(replicas, engine)
    finally:
        await engine.close()
        for replica in replicas:
            await replica.stop()


FleetOf = Callable[..., Any]


@pytest.fixture
def fleet_of() -> FleetOf:
    return open_fleet


@pytest.fixture
def ask() -> Callable[..., Request]:
    return request


@pytest.fixture
def wait_for() -> Callable[..., Awaitable[None]]:
    return until
