"""Calls of Ray Serve's REST interface, and errors if it refuses."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.harness.clock import ManualClock
from tests.harness.ray_serve import ScriptedServe, application, body

from forebay.clients.ray.instance import ServeInstance
from forebay.clients.ray.rest import FORGET_S, CachedPoll, ServeRest, each_address
from forebay.errors import DeployError
from forebay.ports import free_port


async def test_running_applications() -> None:
    made = ScriptedServe([body(application("web"))])
    async with made.served() as serve, ServeRest(f"{serve.address}/") as rest:
        assert list((await rest.instance()).applications) == ["web"]


@pytest.mark.parametrize("token", ["", "  a-token\n"])
async def test_calls_carry_the_token_of_ray(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    async with ScriptedServe([body()]).served() as serve, ServeRest(serve.address) as rest:
        await rest.instance()
        await rest.submit({"applications": []})
        assert serve.authorizations == ["Bearer a-token" if token else None] * 2


async def test_unreadable_token_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "gone"))
    with pytest.raises(DeployError, match=r"Ray's token: secret file .*gone cannot be read"):
        async with ServeRest("http://127.0.0.1:1"):
            pass


async def test_two_line_token_is_rejected_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "first\nsecond")
    with pytest.raises(DeployError, match="expected printable text in one line") as caught:
        async with ServeRest("http://127.0.0.1:1"):
            pass
    assert "first" not in str(caught.value)


async def test_scaling_names_application_deployment_and_number() -> None:
    async with ScriptedServe([body()]).served() as serve, ServeRest(serve.address) as rest:
        await rest.scale("fleet", "engine", 3)
        assert serve.scaled == [
            ("/api/v1/applications/fleet/deployments/engine/scale", {"target_num_replicas": 3})
        ]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "requires a token: .*; put the cluster's token into RAY_AUTH_TOKEN"),
        (403, "rejects the token: .*; put"),
        (404, "Ray Serve is not running there"),
        (503, "not available for now"),
        (400, r"Ray Serve rejects it \(400\)"),
        (302, r"Ray Serve rejects it \(302\)"),
    ],
)
async def test_refusals_of_the_cluster(status: int, said: str) -> None:
    async with ScriptedServe([b"why"], status).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match=said):
            await rest.instance()
        with pytest.raises(DeployError, match=said):
            await rest.submit({"applications": []})


@pytest.mark.parametrize(
    ("status", "said"),
    [(404, "no such application with a 'engine'"), (412, "external_scaler_enabled=false"), (503, "for now")],
)
async def test_deployments_that_cannot_be_scaled(status: int, said: str) -> None:
    async with ScriptedServe([body()], status).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match=said):
            await rest.scale("fleet", "engine", 3)


@pytest.mark.parametrize("answer", [b"<html>", [], {"applications": []}])
async def test_server_that_is_not_a_ray_cluster(answer: Any) -> None:
    async with ScriptedServe([answer]).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match=r"expected JSON|unknown form"):
            await rest.instance()


async def test_endless_answer_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.clients.ray.rest.MAX_BYTES", 1000)
    async with ScriptedServe([b"x" * 100_000]).served() as serve, ServeRest(serve.address) as rest:
        with pytest.raises(DeployError, match="an answer of more than"):
            await rest.instance()


async def test_closed_port() -> None:
    async with ServeRest(f"http://127.0.0.1:{free_port()}") as rest:
        with pytest.raises(
            DeployError, match=r"no Ray cluster: Connection refused; .* head .*--include-dashboard"
        ):
            await rest.instance()


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def getaddrinfo(host: str, port: int, *rest: Any, **more: Any) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    ("addresses", "urls"),
    [
        (("10.0.0.2", "10.0.0.1", "10.0.0.2"), ("http://10.0.0.1:8265/a?b=c", "http://10.0.0.2:8265/a?b=c")),
        (("10.0.0.1",), ("http://head:8265/a?b=c",)),
        (("::1", "127.0.0.1"), ("http://head:8265/a?b=c",)),
        (("fd00::2", "fd00::1"), ("http://[fd00::1]:8265/a?b=c", "http://[fd00::2]:8265/a?b=c")),
    ],
    ids=["two", "one", "one of each kind", "IPv6"],
)
async def test_each_address_gives_a_url(
    addresses: tuple[str, ...], urls: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, *addresses)
    assert await each_address("http://head:8265/a?b=c") == urls


@pytest.mark.parametrize("url", ["https://head:8265", "http://head:port", "http://["])
async def test_other_url_is_unchanged(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "10.0.0.1", "10.0.0.2")
    assert await each_address(url) == (url,)


async def test_a_name_that_is_not_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(DeployError, match="the name head cannot be resolved: Name or service not known"):
        await each_address("http://me:geheim@head:8265")


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


async def test_poll_result_is_shared_for_a_while() -> None:
    cluster, clock = Cluster(), ManualClock()
    cluster.may_answer.set()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    found = [await looks.instance("a", 0.5) for _ in range(3)]
    clock.advance(0.5)
    found.append(await looks.instance("a", 0.5))
    assert [each.settings["number"] for each in found] == [1, 1, 1, 2]
    await looks.instance("b", 0.5)
    assert cluster.asked == {"a": 2, "b": 1}


def test_threads_wait_for_the_polling_one() -> None:
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


async def test_failure_is_shared() -> None:
    cluster, clock = Cluster(fails=True), ManualClock()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    tasks = [asyncio.create_task(looks.instance("a", 0.5)) for _ in range(3)]
    await asyncio.sleep(0)
    cluster.may_answer.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(each) for each in found] == ["it is away"] * 3
    assert len({id(each) for each in found}) == 3
    assert cluster.asked == {"a": 1}


async def test_another_caller_polls_if_the_first_is_cancelled() -> None:
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


async def test_slow_poll_is_waited_for() -> None:
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


async def test_waiting_caller_can_be_cancelled_alone() -> None:
    cluster, clock = Cluster(), ManualClock()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    first, second, third = (asyncio.create_task(looks.instance("a", 0.5)) for _ in range(3))
    for _ in range(3):
        await asyncio.sleep(0)
    second.cancel()
    cluster.may_answer.set()
    assert await first is await third
    assert cluster.asked == {"a": 1}


async def test_endless_poll_is_not_waited_for() -> None:
    cluster, clock = Cluster(), ManualClock()
    looks = CachedPoll(cluster.look, clock, limit_s=10.0)
    stuck = asyncio.create_task(looks.instance("a", 0.5))
    await asyncio.sleep(0)
    clock.advance(10.0)
    cluster.may_answer.set()
    assert (await looks.instance("a", 0.5)).settings["number"] == 2
    await stuck


async def test_unused_clusters_are_dropped() -> None:
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
