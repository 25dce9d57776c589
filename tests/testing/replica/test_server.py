"""The fake replica's protocol over plain HTTP. Its faults are tested with the engine client."""

import asyncio
import struct
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest

from forebay.engine.client import HttpEngine
from forebay.engine.load import parse_cache_tokens
from forebay.errors import Overloaded
from forebay.records import Request
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Faults, Fixed, Mixture

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16}


@asynccontextmanager
async def session(
    script: ReplicaScript | None = None,
) -> AsyncIterator[tuple[aiohttp.ClientSession, FakeReplica]]:
    async with (
        FakeReplica(script or ReplicaScript(delay=Fixed(0.0))) as replica,
        aiohttp.ClientSession(replica.url) as client,
    ):
        yield client, replica


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (what is waited for is in another task's plain fields)
        await asyncio.sleep(0.005)


async def test_the_paths_that_every_replica_has() -> None:
    async with session() as (client, _):
        statuses = {}
        for path in (
            "/health",
            "/v1/models",
            "/metrics",
            "/version",
            "/_calls",
            "/nothing",
            "/v1/completions",
        ):
            async with client.get(path) as response:
                statuses[path] = response.status
    assert statuses == {
        "/health": 200,
        "/v1/models": 200,
        "/metrics": 200,
        "/version": 200,
        "/_calls": 200,
        "/nothing": 404,
        "/v1/completions": 405,
    }


async def test_a_streamed_chat_as_vllm_sends_it() -> None:
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    async with (
        session(ReplicaScript(delay=Fixed(0.0), chunks=2)) as (client, _),
        client.post("/v1/chat/completions", json=body, headers={"X-Request-Id": "r1"}) as response,
    ):
        kind, text = response.headers["Content-Type"], await response.text()
    assert kind == "text/event-stream; charset=utf-8"
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    documents: list[Any] = [orjson.loads(event.removeprefix("data: ")) for event in events]
    assert {d["id"] for d in documents} == {"chatcmpl-r1"}
    assert {d["object"] for d in documents} == {"chat.completion.chunk"}
    assert [c["delta"] for d in documents for c in d["choices"]] == [
        {"role": "assistant", "content": ""},
        {"content": "echo:aaf4"},
        {"content": "c61ddcc5"},
    ]
    assert [c["finish_reason"] for d in documents for c in d["choices"]] == [None, None, "stop"]
    assert documents[-1]["choices"] == []
    assert documents[-1]["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 4,
        "total_tokens": 5,
        "prompt_tokens_details": None,
    }


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"model": "fake"}', b'{"model": "fake", "messages": 3}']
)
async def test_a_body_that_is_no_request_is_a_400(body: bytes) -> None:
    async with session() as (client, replica):
        async with client.post("/v1/chat/completions", data=body) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] == 400
        assert replica.report().calls == {}


async def test_slots_bound_what_runs_and_the_rest_waits() -> None:
    script = ReplicaScript(delay=Fixed(0.0), slots=2)
    async with session(script) as (client, replica):
        answer, gate = replica._answer, asyncio.Event()

        async def held(*arguments: Any) -> Any:
            await gate.wait()
            return await answer(*arguments)

        replica._answer = held  # type: ignore[method-assign]
        engine = HttpEngine(replica.url)
        calls = [engine.complete(Request(f"r{i}", "fake", prompt="x"), timeout_s=60) for i in range(6)]
        gathered = asyncio.gather(*calls)
        await until(lambda: replica.report().in_flight == 6)
        async with client.get("/metrics") as response:
            text = await response.text()
        assert 'vllm:num_requests_running{engine="0",model_name="fake"} 2.0' in text
        assert 'vllm:num_requests_waiting{engine="0",model_name="fake"} 4.0' in text
        gate.set()
        await gathered
        await engine.close()
        report = replica.report()
    assert (report.max_in_flight, report.in_flight, report.completed) == (6, 0, 6)


async def test_a_full_queue_answers_503() -> None:
    script = ReplicaScript(delay=Fixed(60.0), slots=1, max_queue=1)
    async with session(script) as (_, replica):
        engine = HttpEngine(replica.url)
        for i in range(2):
            task = asyncio.ensure_future(engine.complete(Request(f"r{i}", "fake", prompt="x"), timeout_s=60))
            task.add_done_callback(lambda done: done.exception())
            await until(lambda i=i: replica.report().in_flight == i + 1)  # type: ignore[misc]
        with pytest.raises(Overloaded, match="queue is full"):
            await engine.complete(Request("r2", "fake", prompt="x"), timeout_s=60)
        await engine.close()
        await until(lambda: replica.report().in_flight == 0)
        assert replica.report().aborted == 2


async def test_caller_that_has_left_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def leave(*_: object) -> None:
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    async with session() as (client, replica):
        replica._answer = leave  # type: ignore[method-assign]
        with pytest.raises(aiohttp.ClientError):
            await client.post("/v1/chat/completions", json=CHAT)
        assert replica.report().aborted == 1
    assert not caplog.records


async def test_a_cached_prefix_is_reported_and_counted() -> None:
    script = ReplicaScript(delay=Fixed(0.0), block_chars=100, cache_blocks=10)
    async with session(script) as (client, replica):
        engine = HttpEngine(replica.url)
        prompt = "x" * 450
        usages = [
            (await engine.complete(Request("r", "fake", prompt=prompt), timeout_s=30)).usage for _ in range(2)
        ]
        await engine.close()
        async with client.get("/metrics") as response:
            text = await response.text()
    assert [usage.cached_tokens for usage in usages] == [0, 100]
    assert 'vllm:prefix_cache_hits_total{engine="0",model_name="fake"} 100.0' in text


@pytest.mark.parametrize(
    "script",
    [
        ReplicaScript(),
        ReplicaScript(
            models=("a", "b"),
            delay=Fixed(0.5),
            slots=3,
            api_key="k",
            faults=Faults((("cut", 0.5), ("500", 0.1)), seed=4),
        ),
        ReplicaScript(delay=Mixture(((1.0, 0.1),), seed=9), token_s=0.1),
    ],
)
def test_a_script_survives_json_and_does_not_show_its_key(script: ReplicaScript) -> None:
    assert ReplicaScript.from_json(script.to_json()) == script
    assert "api_key" not in repr(script)


async def test_embeddings_are_functions_of_their_texts() -> None:
    async with session() as (client, replica):
        answers = []
        for form in ("float", "base64"):
            body = {"model": "fake", "input": ["a", "b", "a"], "encoding_format": form}
            async with client.post("/v1/embeddings", json=body) as response:
                answers.append([item["embedding"] for item in (await response.json())["data"]])
        async with client.post("/v1/embeddings", json={"model": "another", "input": "a"}) as response:
            assert response.status == 400
        assert replica.report().completed == 2
    plain, packed = answers
    assert plain[0] == plain[2] != plain[1]
    assert list(struct.unpack("<8f", b64decode(packed[1]))) == pytest.approx(plain[1])


async def test_speed_can_be_changed_and_work_read() -> None:
    script = ReplicaScript(delay=Fixed(0.0), decode=Fixed(0.02), slots=2)
    async with session(script) as (client, replica):
        async with client.post("/_speed", data="2") as response:
            assert response.status == 200
        for bad in ("fast", "-1", "inf"):
            async with client.post("/_speed", data=bad) as response:
                assert response.status == 400
        assert replica.speed == 2.0
        for id in ("a", "b", "b"):
            async with client.post(
                "/v1/chat/completions", json=CHAT, headers={"X-Request-Id": id}
            ) as response:
                assert response.status == 200
        async with client.get("/_work") as response:
            work = await response.json()
    assert (work["speed"], work["answers"], work["calls"], work["running"]) == (2.0, 2, 3, 0)
    assert 0.02 <= work["wasted_s"] < work["spent_s"] < work["could_s"]


async def test_every_call_is_refused_for_a_while() -> None:
    script = ReplicaScript(delay=Fixed(0.0), retry_after_s=2)
    async with session(script) as (client, _):
        async with client.post("/_refuse", data="-1") as response:
            assert response.status == 400
        for seconds, status in (("1000", 429), ("0", 200)):
            async with client.post("/_refuse", data=seconds) as response:
                assert response.status == 200
            async with client.post("/v1/chat/completions", json=CHAT) as response:
                assert response.status == status
                assert response.headers.get("Retry-After") == ("2" if status == 429 else None)


async def test_a_request_may_be_named_in_its_prompt() -> None:
    script = ReplicaScript(delay=Fixed(0.0), id_in_prompt=r"event-\d+")
    async with session(script) as (client, replica):
        for words, id in (("about event-17.", "from-the-header"), ("about nothing", "another")):
            body = {**CHAT, "messages": [{"role": "user", "content": words}]}
            async with client.post(
                "/v1/chat/completions", json=body, headers={"X-Request-Id": id}
            ) as response:
                assert response.status == 200
        assert replica.report().calls == {"event-17": 1, "another": 1}


async def test_absent_call_is_404_and_a_stream_may_be_sent_at_once() -> None:
    script = ReplicaScript(delay=Fixed(0.0), streams=False, absent=("/metrics", "/health"))
    async with session(script) as (client, _):
        for path, status in (("/metrics", 404), ("/health", 404), ("/v1/models", 200)):
            async with client.get(path) as response:
                assert response.status == status
        headers = {"endpoint-load-metrics-format": "TEXT"}
        async with client.post(
            "/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers
        ) as response:
            assert response.content_type == "application/json"
            assert "endpoint-load-metrics" not in response.headers
            assert (await response.json())["choices"][0]["message"]["content"].startswith("echo:")


async def test_no_usage_without_include_usage() -> None:
    body = CHAT | {"stream": True}
    async with session() as (client, _), client.post("/v1/chat/completions", json=body) as response:
        assert "usage" not in await response.text()


@pytest.mark.parametrize(("kv_tokens", "found"), [(0, None), (48_000, 48_000)])
async def test_metrics_report_the_size_of_the_kv_cache(kv_tokens: int, found: float | None) -> None:
    script = ReplicaScript(kv_tokens=kv_tokens)
    async with session(script) as (client, _), client.get("/metrics") as response:
        assert parse_cache_tokens(await response.text()) == found
