"""Nodes of a real Ray cluster are killed while its fleet answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import orjson
import pytest
from benchmarks.ray_fleet.cluster import LOOPBACK, OTHER_LOOPBACK, RayCluster, find_ray
from typer.testing import CliRunner

from forebay.cli import application
from forebay.engine.retry import Outcome, RetryPolicy, complete_with_retry
from forebay.fleet.config import FleetConfig
from forebay.fleet.endpoints import RayReplicas
from forebay.fleet.engine import FleetEngine
from forebay.records import Message, Request, Sampling
from forebay.testing.replica import fetch_report
from forebay.testing.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.xdist_group("ray")]

SENDERS = 4
DEADLINE_S = 400.0
"""Longer than these clusters need to recover on a busy machine."""
SHORT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "20"}
"""How long nodes look for their head; the default is a minute."""


class Load:
    """Continuous requests to the fleet, retried until their deadline like in a pipeline."""

    def __init__(self, place: str) -> None:
        self.engine = FleetEngine(FleetConfig(RayReplicas(place), model="small"))
        self.outcomes: list[Outcome] = []
        self._goes_on = True

    async def send(self, sender: int) -> None:
        number = 0
        while self._goes_on:
            number += 1
            request = Request(
                f"{sender}-{number}",
                "small",
                (Message("user", f"What of {number}?"),),
                sampling=Sampling(max_tokens=4),
            )
            self.outcomes.append(
                await complete_with_retry(
                    self.engine, request, policy=RetryPolicy(), timeout_s=30.0, deadline_s=DEADLINE_S
                )
            )

    @property
    def client(self) -> Mapping[str, str]:
        """The router's replicas, and what is wrong with each."""
        return self.engine.client.replicas()

    async def more(self, many: int) -> None:
        """Return once `many` more requests have ended."""
        until = len(self.outcomes) + many
        await wait(lambda: len(self.outcomes) >= until)

    def end(self) -> None:
        """Send no more; requests in flight end by themselves."""
        self._goes_on = False

    @property
    def lost(self) -> list[str]:
        return [str(outcome.error) for outcome in self.outcomes if outcome.error is not None]


async def wait(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


@asynccontextmanager
async def loaded(cluster: RayCluster) -> AsyncIterator[Load]:
    """The fleet under load; ends when all requests have ended."""
    load = Load(f"{cluster.address}/fleet")
    senders = [asyncio.create_task(load.send(sender)) for sender in range(SENDERS)]
    try:
        await load.more(20)
        yield load
        load.end()
        await asyncio.gather(*senders)
    finally:
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        await load.engine.close()


@contextmanager
def cluster_of(head: int, node: int, environment: Mapping[str, str] | None = None) -> Iterator[RayCluster]:
    """A head and another node, with room for these numbers of replicas."""
    ray = find_ray()
    if ray is None:
        pytest.skip("Ray is missing: make ray")
    with RayCluster(ray, head, environment) as cluster:
        cluster.start_node(node)
        yield cluster


async def apply(cluster: RayCluster, folder: Path, replicas: int) -> None:
    path = folder / "fleet.yaml"
    # One core each, so that a node is full at some number.
    fleet = cluster.fleet("fleet") | {"cpu": 1, "replicas": replicas}
    fleet["command"] += ["--delay", "1:0.2"]
    path.write_bytes(orjson.dumps(fleet))
    await run(cluster, folder, "--apply")


async def run(cluster: RayCluster, folder: Path, *words: str) -> str:
    command = ["deploy", "ray", str(folder / "fleet.yaml"), "--address", cluster.address, *words]
    done = await asyncio.to_thread(CliRunner().invoke, application(), command)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def at(address: str, urls: Mapping[str, str]) -> list[str]:
    return [url for url in urls if url.startswith(f"http://{address}:")]


@pytest.mark.parametrize("end", [RayCluster.kill_node, RayCluster.freeze_node], ids=["killed", "silent"])
async def test_lost_node_loses_no_request(end: Callable[[RayCluster], None], tmp_path: Path) -> None:
    with cluster_of(head=2, node=2) as cluster:
        await apply(cluster, tmp_path, 3)
        async with loaded(cluster) as load:
            await wait(lambda: len(load.client) == 3 and not any(load.client.values()))
            lost = at(OTHER_LOOPBACK, load.client)
            assert lost, "the head has room for two"
            await wait(lambda: fetch_report(lost[0]).in_flight > 0)
            await asyncio.to_thread(end, cluster)
            # The router forgets them, and Serve fills the head.
            await wait(lambda: len(at(LOOPBACK, load.client)) == 2 == len(load.client))
            await load.more(20)
            status = await run(cluster, tmp_path, "--status")
            assert "3 replicas wanted" in status
            assert "2 running" in status
            # There is room again.
            if end is not RayCluster.kill_node:
                cluster.kill_node()
            await asyncio.to_thread(cluster.start_node, 2)
            await wait(lambda: len(at(OTHER_LOOPBACK, load.client)) == 1)
            await load.more(20)
    assert load.lost == []


async def test_engines_answer_without_a_head_and_apply_restores_the_fleet(tmp_path: Path) -> None:
    with cluster_of(head=0, node=3, environment=SHORT) as cluster:
        await apply(cluster, tmp_path, 2)
        async with loaded(cluster) as load:
            await wait(lambda: len(load.client) == 2 and not any(load.client.values()))
            before = set(load.client)
            await asyncio.to_thread(cluster.kill_head)
            await wait(lambda: "Connection refused; check that its head runs" in load.engine.client.fault)
            await load.more(40)
            assert set(load.client) == before
            # Without a head for long, the node ends, and its engines with it. Requests wait.
            await wait(cluster.node_has_ended)
            await wait(lambda: all(load.client.values()))
            await asyncio.to_thread(cluster.start_head)
            await wait(lambda: "`forebay deploy ray` puts it there" in load.engine.client.fault)
            assert set(load.client) == before
            cluster.kill_node()
            cluster.start_node(3)
            await run(cluster, tmp_path, "--apply")
            await wait(lambda: len(load.client) == 2 and not before & set(load.client))
            await load.more(40)
    assert load.lost == []


async def test_restarted_head_with_stored_state_finds_its_engines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forebay.fleet.membership")
    stored = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(tmp_path / "gcs")}
    with cluster_of(head=0, node=3, environment=stored) as cluster:
        await apply(cluster, tmp_path, 2)
        async with loaded(cluster) as load:
            await wait(lambda: len(load.client) == 2 and not any(load.client.values()))
            before = set(load.client)
            await asyncio.to_thread(cluster.kill_head)
            await wait(lambda: load.engine.client.fault != "")
            await load.more(40)
            await asyncio.to_thread(cluster.start_head)
            await wait(lambda: load.engine.client.fault == "")
            assert set(load.client) == before
            # It is its head again.
            await run(cluster, tmp_path, "--replicas", "3")
            await wait(lambda: len(load.client) == 3 and not any(load.client.values()))
            assert before < set(load.client)
    assert load.lost == []
    assert {outcome.attempts for outcome in load.outcomes} == {1}, "nothing was cut off"
    assert "leaves with" not in caplog.text, "no list without them was believed"
