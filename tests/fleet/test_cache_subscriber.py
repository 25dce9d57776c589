from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest

from forebay.errors import SettingError
from forebay.fleet.cache_events import MAX_MESSAGE_BYTES
from forebay.fleet.cache_subscriber import cache_endpoint
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.routing_request import text_blocks
from forebay.testing.replica import FakeReplica, ReplicaScript

zmq = pytest.importorskip("zmq")
zmq_asyncio = pytest.importorskip("zmq.asyncio")

TEXT = "a question of some length " * 60


class Script:
    def __init__(self, context: Any, port: int = 0) -> None:
        self._socket = context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.XPUB_VERBOSER, 1)
        self._socket.bind(f"tcp://127.0.0.1:{port}" if port else "tcp://127.0.0.1:*")
        self.port = int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rsplit(":", 1)[1])
        self.sequence = 0

    async def subscribed(self) -> None:
        while await asyncio.wait_for(self._socket.recv(), 180.0) != b"\1":
            pass

    async def note(self, *events: Any) -> None:
        await self.send(msgpack.packb([1.0, list(events), 0]))

    async def send(self, payload: bytes) -> None:
        await self._socket.send_multipart([b"", self.sequence.to_bytes(8, "big"), payload])
        self.sequence += 1

    def close(self) -> None:
        self._socket.close(linger=0)


@asynccontextmanager
async def publisher() -> AsyncIterator[tuple[Any, Script]]:
    context = zmq_asyncio.Context()
    try:
        yield context, Script(context)
    finally:
        context.destroy(linger=0)


async def bound_again(context: Any, port: int) -> Script:
    end_s = asyncio.get_running_loop().time() + 180.0
    while True:
        try:
            return Script(context, port)
        except zmq.ZMQError:
            assert asyncio.get_running_loop().time() < end_s, "the port did not become free"
            await asyncio.sleep(0.005)


def removed(*hashes: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0}


def stored(*hashes: int) -> dict[str, Any]:
    return removed(*hashes) | {"type": "BlockStored"}


@asynccontextmanager
async def followed(fleet_of: Any, script: Script) -> AsyncIterator[Any]:
    async with fleet_of(1, kv_events=f"tcp://{{host}}:{script.port}") as fakes:
        await fakes.engine.client.start(60.0)
        await script.subscribed()
        yield fakes


def held(fakes: Any) -> int:
    return int(fakes.engine.client.fleet.index.match(text_blocks(TEXT))[0])


def watch(fakes: Any, url: str = "") -> Any:
    return fakes.engine.client._membership.replicas[url or fakes.replicas[0].url].cache


@pytest.mark.heavy
async def test_blocks_evicted_by_others_are_forgotten(fleet_of: Any, ask: Any, wait_for: Any) -> None:
    async with publisher() as (_, script), followed(fleet_of, script) as fakes:
        await script.note(stored(*range(100)))
        # Received before the prompt is sent: blocks stored later do not count as older.
        await wait_for(lambda: watch(fakes).read == 1)
        await fakes.engine.complete(ask(1, TEXT), timeout_s=60.0)
        assert held(fakes) == 3
        await script.note(removed(*range(50)))
        await script.note(stored(*range(100, 150)))
        await wait_for(lambda: watch(fakes).read == 3)
        await fakes.engine.complete(ask(2, "short"), timeout_s=60.0)
        assert held(fakes) == 3, "only what was stored before the prompt is gone"
        await script.note(removed(*range(50, 110)))
        await wait_for(lambda: held(fakes) == 0)


@pytest.mark.heavy
async def test_cleared_cache_and_restart_forget_all_blocks(fleet_of: Any, ask: Any, wait_for: Any) -> None:
    async with publisher() as (context, script), followed(fleet_of, script) as fakes:
        await fakes.engine.complete(ask(1, TEXT), timeout_s=60.0)
        await script.note({"type": "AllBlocksCleared"})
        await wait_for(lambda: held(fakes) == 0)
        await fakes.engine.complete(ask(2, TEXT), timeout_s=60.0)
        assert held(fakes) == 3
        script.close()
        again = await bound_again(context, script.port)
        await again.subscribed()
        await again.note(stored(1))
        await wait_for(lambda: held(fakes) == 0)


@pytest.mark.heavy
async def test_hostile_bytes_are_counted_and_reading_continues(
    fleet_of: Any, ask: Any, wait_for: Any
) -> None:
    async with publisher() as (_, script), followed(fleet_of, script) as fakes:
        await script.send(b"\xc1")
        await script.send(b"\x91" * 100_000)
        await script.note(stored("text"))  # type: ignore[arg-type]
        await wait_for(lambda: watch(fakes).malformed == 3)
        await script.send(bytes(MAX_MESSAGE_BYTES + 1))
        await script.subscribed()  # cut off, and here again
        await script.note(stored(1))
        await wait_for(lambda: watch(fakes).read == 1)
        assert (await fakes.engine.complete(ask(1, TEXT), timeout_s=60.0)).text


async def test_absent_publisher_blocks_nothing(fleet_of: Any, ask: Any) -> None:
    async with fleet_of(1, kv_events="tcp://{host}:9") as fakes:
        assert (await fakes.engine.complete(ask(1, TEXT), timeout_s=60.0)).text
        assert watch(fakes).read == 0


async def test_port_can_be_derived_from_the_replicas_address(fleet_of: Any, wait_for: Any) -> None:
    async with publisher() as (_, script), FakeReplica(ReplicaScript(models=("m",))) as replica:
        added = script.port - replica.port
        kv_events = f"tcp://{{host}}:{{port{added:+}}}"
        async with fleet_of(0, dead=(replica.url,), kv_events=kv_events) as fakes:
            await fakes.engine.client.start(60.0)
            await script.subscribed()
            await script.note(stored(1))
            await wait_for(lambda: watch(fakes, replica.url).read == 1)


@pytest.mark.parametrize(
    ("form", "replica", "endpoint"),
    [
        ("tcp://{host}:5557", "http://10.0.0.7:8000", "tcp://10.0.0.7:5557"),
        ("tcp://{host}:{port+200}", "http://gpu-1:8001", "tcp://gpu-1:8201"),
        ("tcp://{host}:{port-2443}", "http://gpu-1:8000", "tcp://gpu-1:5557"),
        ("tcp://{host}:5557", "https://gpu-1", "tcp://gpu-1:5557"),
        ("tcp://{host}:5557", "http://[::1]:8000", "tcp://[::1]:5557"),
    ],
)
def test_events_address_of_a_replica(form: str, replica: str, endpoint: str) -> None:
    assert cache_endpoint(form, replica) == endpoint


@pytest.mark.parametrize(
    "form",
    [
        "",
        "tcp://*:5557",
        "tcp://{host}",
        "tcp://{host}:0",
        "tcp://{host}:65536",
        "ipc://{host}:1",
        "tcp://{host}:{port}",
        "tcp://{host}:{port+0}",
        "tcp://{host}:{port+99999}",
        "tcp://{host}:5557/x",
    ],
)
def test_other_address_form_is_rejected(form: str) -> None:
    with pytest.raises(SettingError, match=r"kv_events: expected tcp://\{host\}:5557 or"):
        FleetConfig(FixedReplicas(("http://a:1",)), kv_events=form)


def test_invalid_port_is_rejected() -> None:
    with pytest.raises(SettingError, match="gives port 65600 for http://a:65000"):
        cache_endpoint("tcp://{host}:{port+600}", "http://a:65000")
