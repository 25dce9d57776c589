"""What replicas may do wrong: a request goes elsewhere as long as its client has got no byte."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import aiohttp
import orjson
import pytest

from forebay.errors import SettingError
from forebay.fleet.config import FleetConfig
from forebay.ports import free_port
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Faults, Fixed

from .conftest import CHAT, QUICK, Served, before, serving, spec_of, until

BUSY = ReplicaScript(delay=Fixed(0.0), faults=Faults((("503", 1.0),)))
SILENT = ReplicaScript(delay=Fixed(0.0), faults=Faults((("refuse", 1.0),)))
FAILING = ReplicaScript(delay=Fixed(0.0), faults=Faults((("500", 1.0),)))


async def chat(served: Served, **more: Any) -> tuple[int, bytes]:
    body = CHAT | more
    async with served.session.post(served.url + "/v1/chat/completions", json=body) as response:
        return response.status, await response.read()


async def test_unreachable_replica_is_skipped_at_the_start() -> None:
    async with FakeReplica(QUICK) as replica:
        away = f"http://127.0.0.1:{free_port()}"
        async with serving(spec_of([away, replica.url])) as served:
            for _ in range(5):
                assert (await chat(served))[0] == 200
            assert served.gateway.health()[1]["replicas"] == {"available": 1, "known": 2}


@pytest.mark.heavy
async def test_gateway_without_replicas_reports_503_until_one_starts() -> None:
    port = free_port()
    async with serving(spec_of([f"http://127.0.0.1:{port}"], relay={"absent_s": 0.1}), wait_s=0.05) as served:
        status, body = await chat(served)
        assert (status, orjson.loads(body)["error"]["code"]) == (503, "no_replica")
        assert str(port) not in body.decode()
        for path in ("/health", "/v1/models"):
            async with served.session.get(served.url + path) as response:
                assert response.status == 503
        async with FakeReplica(QUICK, port=port):
            await until(lambda: served.gateway.health()[0] == 200)
            assert (await chat(served))[0] == 200


async def test_replica_of_another_model_fails_the_start() -> None:
    async with FakeReplica(ReplicaScript(models=("one",))) as replica:
        spec = spec_of([replica.url], engine={"model": "another"})
        with pytest.raises(SettingError, match="serves the model"):
            async with serving(spec):
                pass


async def test_replica_of_another_model_gets_nothing() -> None:
    async with before(QUICK, ReplicaScript(models=("other",)), engine={"model": "fake"}) as (
        served,
        replicas,
    ):
        for _ in range(4):
            assert (await chat(served))[0] == 200
        status, body = await chat(served, model="other")
        assert (status, orjson.loads(body)["error"]["code"]) == (404, "model_not_found")
        assert not replicas[1].report().calls


@pytest.mark.heavy
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("bad", [BUSY, FAILING, SILENT])
async def test_bad_replica_is_hidden_from_clients(bad: ReplicaScript, stream: bool) -> None:
    async with before(bad, QUICK, routing="round_robin") as (served, replicas):
        for _ in range(6):
            assert (await chat(served, stream=stream))[0] == 200
        assert replicas[0].report().calls
        assert replicas[1].report().completed == 6


@pytest.mark.heavy
async def test_replica_that_sends_nothing_is_replaced_by_another() -> None:
    hung = ReplicaScript(faults=Faults((("hang", 1.0),)))
    settings: dict[str, Any] = {"routing": "round_robin", "relay": {"first_byte_s": 1.0}}
    async with before(hung, QUICK, **settings) as (served, replicas):
        answers = await asyncio.gather(*(chat(served, stream=True) for _ in range(2)))
        assert [status for status, _ in answers] == [200, 200]
        assert replicas[1].report().completed == 2
        await until(lambda: replicas[0].report().in_flight == 0)


async def test_replica_that_alone_fails_is_avoided() -> None:
    async with before(FAILING, QUICK, routing="round_robin") as (served, replicas):
        for _ in range(20):
            assert (await chat(served))[0] == 200
        # Taken in turn it would get half of them.
        assert sum(replicas[0].report().calls.values()) < 10


async def test_failure_on_two_replicas_is_the_requests_fault() -> None:
    async with before(QUICK, QUICK) as (served, replicas):
        bad = [{"role": "user", "content": "((fault:500))"}]
        for _ in range(8):
            status, body = await chat(served, messages=bad)
            assert (status, orjson.loads(body)["error"]["type"]) == (500, "ScriptedError")
        assert served.gateway.health()[1]["replicas"] == {"available": 2, "known": 2}
        assert (await chat(served))[0] == 200
        assert all(replica.report().calls for replica in replicas)


async def test_broken_answer_is_not_restarted() -> None:
    async with before(QUICK, QUICK) as (served, replicas):
        bad = [{"role": "user", "content": "((fault:cut))"}]
        async with served.session.post(
            served.url + "/v1/chat/completions", json=CHAT | {"messages": bad, "stream": True}
        ) as response:
            got = await response.content.readuntil(b"replica_failed")
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.content.read()
        assert got.count(b"assistant") == 1
        assert sum(sum(replica.report().calls.values()) for replica in replicas) == 1
        outcome = 'outcome="cut",route="/v1/chat/completions"}'
        assert await served.metric('forebay_gateway_requests_total{key="anyone",' + outcome) == 1


@pytest.mark.heavy
async def test_losing_all_replicas_fails_only_requests_made_then() -> None:
    slow = ReplicaScript(delay=Fixed(0.0), token_s=0.2, chunks=4)
    async with before(slow, QUICK, relay={"absent_s": 0.1}) as (served, replicas):
        await replicas[1].stop()
        running = asyncio.ensure_future(chat(served, stream=True))
        await until(lambda: replicas[0].report().in_flight == 1)
        port = replicas[0].port
        await asyncio.wait([running])
        assert running.result()[0] == 200
        await replicas[0].stop()
        status, body = await chat(served)
        assert (status, orjson.loads(body)["error"]["type"]) in ((502, "server_error"), (503, "server_error"))
        async with FakeReplica(QUICK, port=port):
            await until(lambda: served.gateway.health()[0] == 200)
            assert (await chat(served))[0] == 200


async def test_replica_that_rejects_the_gateways_key() -> None:
    async with before(QUICK, relay={"absent_s": 0.1}) as (served, replicas):
        replicas[0].script = ReplicaScript(delay=Fixed(0.0), api_key="sk-secret")
        status, body = await chat(served)
        assert (status, orjson.loads(body)["error"]["code"]) == (502, "replica_refused")


async def test_all_replicas_busy_is_503() -> None:
    async with (
        before(BUSY, relay={"absent_s": 0.1}) as (served, _),
        served.session.post(served.url + "/v1/chat/completions", json=CHAT) as response,
    ):
        assert response.status == 503
        assert int(response.headers["retry-after"]) >= 1
        assert (await response.json())["error"]["code"] == "no_replica"


@pytest.mark.heavy
async def test_long_non_streaming_answer_is_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    # Silence of one replica while the other answers is what hanging looks like from afar.
    monkeypatch.setattr("forebay.gateway.spec.FleetConfig", partial(FleetConfig, stall_s=0.1))
    async with before(ReplicaScript(delay=Fixed(1.0)), QUICK, routing="round_robin") as (served, replicas):
        statuses = await asyncio.gather(*(chat(served) for _ in range(4)))
        assert [status for status, _ in statuses] == [200] * 4
        assert replicas[0].report().aborted == 0
        assert served.gateway.health()[1]["replicas"] == {"available": 2, "known": 2}


@pytest.mark.heavy
async def test_slow_reading_client_is_not_a_replica_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.gateway.spec.FleetConfig", partial(FleetConfig, stall_s=0.4))
    slow = ReplicaScript(delay=Fixed(0.05))
    async with before(slow, slow) as (served, replicas):
        endless = CHAT | {"messages": [{"role": "user", "content": "((fault:huge))"}], "stream": True}
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
        body = orjson.dumps(endless)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(
            body
        )
        writer.write(head + body)
        await reader.readuntil(b"\r\n")
        for _ in range(30):
            assert (await chat(served))[0] == 200
        assert served.gateway.health()[1]["replicas"] == {"available": 2, "known": 2}
        writer.close()
        await until(lambda: sum(replica.report().aborted for replica in replicas) == 1)
