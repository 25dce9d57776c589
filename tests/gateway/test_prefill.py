"""Prompts prefilled at one replica and decoded at another: a KV cache is read once and in time, and no answer
differs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest
from aiohttp import web
from tests.harness.prefill_pools import CHAT_OF, PROMPT, SCRIPT, alone, calls, pools, text_of

from forebay.engine.protocol import CHAT_PATH, KV_TRANSFER, PROMPT_PATH
from forebay.errors import ProtocolViolation
from forebay.fleet.disaggregated import PREFILL_PARAMS
from forebay.gateway.prefill import MAX_DEPTH, decode_body, kv_transfer_in, prefill_body
from forebay.gateway.routes import EMBED_PATH
from forebay.testing.replica import FakeReplica
from forebay.testing.replica.work import KvPlace
from forebay.testing.script import Fixed

from .conftest import serving, spec_of

ALLOWED = {"headers": ["x-own"], "fields": ["unknown"]}
pytestmark = pytest.mark.usefixtures("clients_ids")


@pytest.mark.heavy
@pytest.mark.parametrize(("path", "body"), [(CHAT_PATH, CHAT_OF), (PROMPT_PATH, PROMPT)])
@pytest.mark.parametrize("stream", [False, True])
async def test_each_prompt_is_prefilled_and_decoded_on_two_replicas(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    body = body | {"stream": stream}
    told = await alone(body, path)
    async with pools(each=2) as both:
        answers = await asyncio.gather(*(both.ask(body, path) for _ in range(12)))
        assert {status for status, _ in answers} == {200}
        assert both.calls() == (12, 12)
        assert both.reads() == [1] * 12
        assert await both.counted() == {"transferred": 12}
        if stream:
            assert {answer for _, answer in answers} == {told}
        else:
            assert {text_of(answer) for _, answer in answers} == {text_of(told)}


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (CHAT_PATH, CHAT_OF | {"n": 2}, {"unsuitable": 1}),
        (PROMPT_PATH, PROMPT | {"prompt": ["one", "two"]}, {"unsuitable": 1}),
        (EMBED_PATH, {"model": "fake", "input": "one"}, {}),
    ],
)
async def test_requests_without_kv_transfer_use_one_replica_unchanged(
    path: str, body: dict[str, Any], why: dict[str, float]
) -> None:
    async with pools() as both:
        text = json.dumps(body).encode()
        async with both.served.session.post(both.served.url + path, data=text) as response:
            assert response.status == 200
        assert both.calls() == (0, 1)
        assert await both.counted() == why


async def test_both_replicas_get_the_clients_headers_and_prompt() -> None:
    seen: list[tuple[str, bytes, Mapping[str, str]]] = []
    given = {"remote_engine_id": "p", "remote_block_ids": [[1, 2]]}

    @asynccontextmanager
    async def recorder(name: str) -> AsyncIterator[str]:
        async def chat(request: web.Request) -> web.Response:
            seen.append((name, await request.read(), request.headers))
            return web.json_response({"choices": [], KV_TRANSFER: given})

        async def models(request: web.Request) -> web.Response:
            return web.json_response({"object": "list", "data": [{"id": "fake"}]})

        async def healthy(request: web.Request) -> web.Response:
            return web.Response()

        app = web.Application()
        app.add_routes(
            [web.post(CHAT_PATH, chat), web.get("/v1/models", models), web.get("/health", healthy)]
        )
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    odd = orjson.dumps(CHAT_OF)[:-1] + b' , "unknown" : 1.50e0 , "min_tokens":3 }\n'
    headers = {"X-Request-Id": "mine-1", "Authorization": "Bearer sk-client", "X-Own": "kept"}
    async with (
        recorder("prefill") as first,
        recorder("decode") as second,
        serving(spec_of([second], engine={"prefill": first}, relay=ALLOWED)) as served,
        served.session.post(served.url + CHAT_PATH, data=odd, headers=headers) as response,
    ):
        assert response.status == 200
    assert [name for name, _, _ in seen] == ["prefill", "decode"]
    for _, _, sent in seen:
        assert (sent["X-Request-Id"], sent["X-Own"]) == ("mine-1", "kept")
        assert "Authorization" not in sent
    prefill, decode = (body for _, body, _ in seen)
    assert orjson.loads(prefill) == CHAT_OF | {"unknown": 1.5, "max_tokens": 1, KV_TRANSFER: PREFILL_PARAMS}
    read = orjson.dumps(orjson.loads(odd))
    assert decode == read[:-1] + b',"kv_transfer_params":' + orjson.dumps(given) + b"}"


async def test_prompt_tokens_are_found_before_a_long_block_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM names a block for some tokens each, behind its counts."""
    params = KvPlace.params
    blocks = {"blocks": [list(range(4000))]}
    monkeypatch.setattr(KvPlace, "params", lambda place: params(place) | blocks)
    async with pools() as both:
        prefill = both.served.gateway._prefill
        assert prefill is not None
        before = prefill._tokens.chars_per_token
        status, _ = await both.ask(messages=[{"role": "user", "content": "rain " * 500}])
        assert status == 200
        assert await both.counted() == {"transferred": 1}
        assert prefill._tokens.chars_per_token != before


@pytest.mark.heavy
async def test_kv_cache_is_made_only_once_its_decode_has_a_slot() -> None:
    async with pools(decode=replace(SCRIPT, decode=Fixed(0.02)), capacity=2) as both:

        async def ahead() -> int:
            await both.ask()
            prefilled, decoded = both.calls()
            return prefilled - decoded

        assert max(await asyncio.gather(*(ahead() for _ in range(40)))) <= 2, "as many as there are places"
        assert await both.counted() == {"transferred": 40}


async def test_decoder_prefills_too_without_a_kv_cache() -> None:
    async with pools(prefill=replace(SCRIPT, gives_kv_cache=False)) as both:
        assert (await both.ask())[0] == 200
        assert both.reads() == []
        assert await both.counted() == {"no_kv_cache": 1}


async def test_prefill_server_of_another_model_gets_no_prompts() -> None:
    async with pools(prefill=replace(SCRIPT, models=("other",))) as both:
        assert (await both.ask())[0] == 200
        assert both.calls() == (0, 1)
        assert await both.counted() == {"no_server": 1}


async def test_refused_request_is_charged_for_its_prefill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a client could have prompts prefilled for nothing."""
    monkeypatch.setenv("GATEWAY_KEY", "sesame")
    keys = [{"name": "a", "key": {"env": "GATEWAY_KEY"}, "tokens_per_min": 1000}]
    async with FakeReplica(SCRIPT) as prefill, FakeReplica(replace(SCRIPT, max_model_len=200)) as decode:
        spec = spec_of([decode.url], engine={"prefill": prefill.url}, keys=keys)
        async with serving(spec) as served:
            body = CHAT_OF | {"messages": [{"role": "user", "content": "rain " * 150}], "max_tokens": 100}
            statuses = []
            for _ in range(20):
                headers = {"authorization": "Bearer sesame"}
                async with served.session.post(
                    served.url + CHAT_PATH, json=body, headers=headers
                ) as response:
                    statuses.append(response.status)
            assert set(statuses) == {400, 429}
            assert calls([prefill]) == statuses.count(400)


@pytest.mark.heavy
async def test_body_and_prefill_body_both_count_as_memory() -> None:
    body = CHAT_OF | {"messages": [{"role": "user", "content": "x" * 600_000}]}
    async with pools(limits={"max_held_bytes": 1_000_000}) as both:
        status, answer = await both.ask(body)
        assert (status, orjson.loads(answer)["error"]["code"]) == (503, "gateway_full")
        assert (await both.ask(body, n=2))[0] != 503
        assert both.served.gateway._room.held == 0


async def test_health_and_metrics_show_both_pools() -> None:
    async with pools() as both:
        health = both.served.gateway.health()[1]
        assert (health["prefill"], health["replicas"]) == ({"available": 1, "known": 1},) * 2
        for replica in (*both.prefill, *both.decode):
            line = f'forebay_gateway_replica_available{{replica="{replica.url}"}}'
            assert await both.served.metric(line) == 1


def test_prefill_and_decode_bodies() -> None:
    body = b'{"model":"m","max_tokens":9,"stream":true,"stream_options":{"include_usage":true},"top_p":1}\n '
    assert orjson.loads(prefill_body(body)) == {
        "model": "m",
        "max_tokens": 1,
        "top_p": 1,
        KV_TRANSFER: PREFILL_PARAMS,
    }
    assert decode_body(body, {"a": [1]}) == body.rstrip()[:-1] + b',"kv_transfer_params":{"a":[1]}}'


def test_location_of_a_kv_cache() -> None:
    assert kv_transfer_in(b'{"kv_transfer_params":{"a":1}}', "u") == {"a": 1}
    assert kv_transfer_in(b'{"kv_transfer_params":null}', "u") is None
    assert kv_transfer_in(b"{}", "u") is None
    deep = b'{"a":' * MAX_DEPTH + b"{}" + b"}" * MAX_DEPTH
    for wrong in (b"", b"[]", b'{"kv_transfer_params":1}', b'{"kv_transfer_params":' + deep + b"}"):
        with pytest.raises(ProtocolViolation, match="kv_transfer_params"):
            kv_transfer_in(wrong, "u")
