"""A gateway before fake replicas, on real sockets, on the loop of the test or on a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from tests.harness.engines import CannedEngine

from forebay.documents import check_document
from forebay.gateway import app
from forebay.gateway.app import Gateway
from forebay.gateway.exchange import Exchange
from forebay.gateway.serve import GatewayServer, listen, make_gateway, url_of
from forebay.gateway.spec import GatewaySpec
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Fixed

QUICK = ReplicaScript(delay=Fixed(0.0))
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16}


def spec_of(replicas: list[str], **settings: Any) -> GatewaySpec:
    engine = {"url": replicas, **settings.pop("engine", {})}
    return check_document(GatewaySpec, {"engine": engine, **settings}, what="gateway", name="gateway")


@dataclass
class Served:
    """A running gateway."""

    gateway: Gateway
    server: GatewayServer
    port: int
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return url_of("127.0.0.1", self.port)

    async def metric(self, line: str) -> float:
        """The value of the metric whose name and labels are `line`; 0 if it is missing."""
        async with self.session.get(self.url + "/metrics") as response:
            text = await response.text()
        found = [row.rsplit(" ", 1) for row in text.splitlines() if not row.startswith("#")]
        return {name: float(value) for name, value in found}.get(line, 0.0)


@asynccontextmanager
async def serving(
    spec: GatewaySpec, *, wait_s: float = 180.0, gateway: Gateway | None = None
) -> AsyncIterator[Served]:
    """The gateway of `spec` on the running loop."""
    gateway = gateway or make_gateway(spec)
    with listen("127.0.0.1", 0) as taken:
        try:
            await gateway.open(wait_s)
        except BaseException:
            await gateway.close()
            raise
        server = GatewayServer(gateway, spec)
        running = asyncio.ensure_future(server.serve(sockets=[taken]))
        try:
            async with aiohttp.ClientSession() as session:
                yield Served(gateway, server, taken.getsockname()[1], session)
        finally:
            server.should_exit = True
            await running
            await gateway.close()


@asynccontextmanager
async def before(*scripts: ReplicaScript, **settings: Any) -> AsyncIterator[tuple[Served, list[FakeReplica]]]:
    """A gateway before one fake replica per script."""
    replicas = [FakeReplica(script) for script in scripts or (QUICK,)]
    try:
        for replica in replicas:
            await replica.start()
        async with serving(spec_of([replica.url for replica in replicas], **settings)) as served:
            # The start itself waits for one of them alone.
            text = served.gateway._fleet.replicas
            await until(lambda: "it was not asked yet" not in text().values())
            yield served, replicas
    finally:
        for replica in replicas:
            await replica.stop()


@contextmanager
def on_thread(*scripts: ReplicaScript, **settings: Any) -> Iterator[str]:
    """The same on a thread, for clients that block; gives the gateway's URL."""
    started: list[str] = []
    ready, ended = threading.Event(), threading.Event()

    async def main() -> None:
        async with before(*scripts, **settings) as (served, _):
            started.append(served.url)
            ready.set()
            await asyncio.get_running_loop().run_in_executor(None, ended.wait)

    def run() -> None:
        try:
            asyncio.run(main())
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="gateway", daemon=True)
    thread.start()
    ready.wait(180)
    try:
        yield started[0]
    finally:
        ended.set()
        thread.join(180)


@pytest.fixture
def clients_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests have the client's id at replicas, too: scripted ones name faults and answers by it."""

    def exchange(**given: Any) -> Exchange:
        return Exchange(**given, engine_id=given["id"])

    monkeypatch.setattr(app, "Exchange", exchange)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (what is waited for is in another task's plain fields)
        await asyncio.sleep(0.005)


@asynccontextmanager
async def before_engines(
    *engines: CannedEngine, also: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[Served]:
    """A gateway before these engines, and whatever is `also` at other addresses."""
    try:
        for engine in engines:
            await engine.start()
        urls = [*(engine.url for engine in engines), *also]
        async with serving(spec_of(urls, **settings)) as served:
            text = served.gateway._fleet.replicas
            await until(lambda: "it was not asked yet" not in text().values())
            yield served
    finally:
        for engine in engines:
            await engine.stop()
