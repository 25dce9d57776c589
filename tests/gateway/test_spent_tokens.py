"""A key's tokens over real sockets: what one request may take of them, and what is given back."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest

from forebay.engine.protocol import CHAT_PATH
from forebay.testing.replica import ReplicaScript
from forebay.testing.script import Fixed

from ..harness.engines import Canned, CannedEngine, card  # noqa: TID252
from .conftest import CHAT, QUICK, Served, before, before_engines, until

PATH = "/v1/chat/completions"
LENGTH = QUICK.max_model_len


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "sesame")


def limited(tokens_per_min: int) -> dict[str, Any]:
    return {"keys": [{"name": "a", "key": {"env": "GATEWAY_KEY"}, "tokens_per_min": tokens_per_min}]}


async def ask(served: Served, body: dict[str, Any] | bytes) -> tuple[int, int]:
    """Status, and the seconds of `retry-after` (0 without it)."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    headers = {"authorization": "Bearer sesame", "content-type": "application/json"}
    async with served.session.post(served.url + PATH, data=data, headers=headers) as response:
        await response.read()
        return response.status, int(response.headers.get("retry-after", 0))


def tokens_left(served: Served) -> float:
    """Of the only key."""
    left: float = served.gateway.keys._callers[0].usage._tokens._left
    return left


@pytest.mark.heavy
@pytest.mark.parametrize(
    "limit",
    [
        {"max_tokens": 1e12},
        {"max_tokens": "1e308"},
        {"max_tokens": 1e308},
        {"max_tokens": 1 << 63, "n": 1 << 63},
        {"max_completion_tokens": 10**18, "n": 1e300},
    ],
)
async def test_requested_maximum_does_not_lock_a_key(limit: dict[str, Any]) -> None:
    async with before(**limited(100_000)) as (served, _):
        status, _ = await ask(served, CHAT | limit)
        assert status in (200, 400)  # the replica's own status
        assert (await ask(served, CHAT))[0] == 200


async def test_request_without_a_maximum_counts_the_models_limit() -> None:
    body = {name: value for name, value in CHAT.items() if name != "max_tokens"}
    async with before(ReplicaScript(delay=Fixed(600.0)), **limited(3 * LENGTH // 2)) as (served, replicas):
        asking = [asyncio.ensure_future(ask(served, body))]
        await until(lambda: replicas[0].report().in_flight == 1)
        status, wait_s = await ask(served, body)
        assert status == 429
        assert 0 < wait_s <= 60
        asking[0].cancel()


async def test_unused_tokens_of_an_answer_are_returned() -> None:
    body = {name: value for name, value in CHAT.items() if name != "max_tokens"}
    async with before(**limited(LENGTH + 1000)) as (served, _):
        for stream in (False, True, False):
            counted = {"stream_options": {"include_usage": True}} if stream else {}
            assert (await ask(served, body | {"stream": stream} | counted))[0] == 200
            await until(lambda: served.gateway.in_flight == 0)
            assert tokens_left(served) > LENGTH


async def test_tokens_of_an_unsent_request_are_returned() -> None:
    async with before(ReplicaScript(delay=Fixed(0.0), max_queue=0, slots=0), **limited(LENGTH)) as (
        served,
        _,
    ):
        for _ in range(3):
            status, _ = await ask(served, CHAT | {"max_tokens": LENGTH - 100})
            assert status == 503
            await until(lambda: served.gateway.in_flight == 0)
        assert tokens_left(served) == LENGTH


async def test_disconnected_client_gets_no_tokens_back() -> None:
    async with before(ReplicaScript(delay=Fixed(600.0)), **limited(LENGTH)) as (served, replicas):
        asking = asyncio.ensure_future(ask(served, CHAT | {"max_tokens": LENGTH - 100}))
        await until(lambda: replicas[0].report().in_flight == 1)
        asking.cancel()
        await until(lambda: served.gateway.in_flight == 0)
        status, wait_s = await ask(served, CHAT | {"max_tokens": LENGTH - 100})
        assert status == 429
        assert 0 < wait_s <= 120


async def test_abandoned_stream_is_charged_in_full() -> None:
    """An event may hold any number of tokens."""
    script = ReplicaScript(delay=Fixed(0.0), chunks=2, token_s=100.0)
    async with before(script, **limited(LENGTH)) as (served, replicas):
        asking = asyncio.ensure_future(ask(served, CHAT | {"stream": True, "max_tokens": LENGTH // 2}))
        await until(lambda: replicas[0].report().in_flight == 1)
        asking.cancel()
        await until(lambda: served.gateway.in_flight == 0)
        assert tokens_left(served) < LENGTH // 2 + 1000


@pytest.mark.parametrize("asks", [False, True])
async def test_stream_is_metered_whether_or_not_its_client_asks(asks: bool) -> None:
    """The count reaches only a client that asked for it."""
    body = CHAT | {"stream": True} | ({"stream_options": {"include_usage": True}} if asks else {})
    headers = {"authorization": "Bearer sesame"}
    async with before(**limited(LENGTH + 1000)) as (served, _):
        async with served.session.post(served.url + CHAT_PATH, json=body, headers=headers) as response:
            text = await response.read()
        assert (b'"usage"' in text, text.endswith(b"data: [DONE]\n\n")) == (asks, True)
        await until(lambda: served.gateway.in_flight == 0)
        assert tokens_left(served) > LENGTH


async def test_transcript_has_no_usage() -> None:
    """Its words are the client's own."""
    text = b'"prompt_tokens": 1, "completion_tokens": 1'
    engine = CannedEngine([card("m")], {"/v1/audio/transcriptions": Canned(text, content_type="text/plain")})
    async with before_engines(engine, **limited(100_000)) as served:
        form = aiohttp.FormData({"model": "m", "max_completion_tokens": "4000", "response_format": "text"})
        form.add_field("file", b"RIFF", filename="a.wav")
        headers = {"authorization": "Bearer sesame"}
        url = served.url + "/v1/audio/transcriptions"
        async with served.session.post(url, data=form, headers=headers) as response:
            assert await response.read() == text
        await until(lambda: served.gateway.in_flight == 0)
        assert tokens_left(served) < 97_000
