"""Requests go by their model: to replicas that list it now, by aliases, and to a fallback."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.engines import Canned, CannedEngine, answer_of, card

from forebay.errors import SettingError
from forebay.gateway.models import Alias

from .conftest import Served, before_engines, spec_of, until

CHAT_PATH = "/v1/chat/completions"


def engine_of(name: str, *models: str) -> CannedEngine:
    """An engine that answers with its own name."""
    return CannedEngine([card(model) for model in models], {CHAT_PATH: answer_of(name)})


async def chat(served: Served, model: str, **more: Any) -> tuple[int, str]:
    """Status, and the name of the engine that answered or the error's code."""
    body = {"model": model, "messages": [{"role": "user", "content": "a"}], **more}
    async with served.session.post(served.url + CHAT_PATH, json=body) as response:
        document = await response.json()
        if response.status == 200:
            return 200, document["choices"][0]["message"]["content"]
        return response.status, document["error"]["code"]


async def listed(served: Served) -> dict[str, dict[str, Any]]:
    async with served.session.get(served.url + "/v1/models") as response:
        return {one["id"]: one for one in (await response.json())["data"]}


async def test_one_gateway_serves_replicas_of_different_models() -> None:
    one, two = engine_of("one", "a", "both"), engine_of("two", "b", "both")
    async with before_engines(one, two) as served:
        assert sorted(await listed(served)) == ["a", "b", "both"]
        for _ in range(4):
            assert await chat(served, "a") == (200, "one")
            assert await chat(served, "b") == (200, "two")
        found = {await chat(served, "both") for _ in range(8)}
        assert found <= {(200, "one"), (200, "two")}
        assert await chat(served, "c") == (404, "model_not_found")


async def test_replica_with_an_adapter_serves_the_base_model_too() -> None:
    """The first replica alone decides nothing: neither of the two has just what the other has."""
    async with before_engines(engine_of("plain", "base"), engine_of("tuned", "base", "adapter")) as served:
        assert await chat(served, "adapter") == (200, "tuned")
        assert await chat(served, "base") in ((200, "plain"), (200, "tuned"))
        assert served.gateway.health()[1]["replicas"] == {"available": 2, "known": 2}


async def test_adapter_loaded_later_is_found_on_request() -> None:
    engine = engine_of("one", "base")
    async with before_engines(engine) as served:
        assert await chat(served, "adapter") == (404, "model_not_found")
        engine.models.append(card("adapter", parent="base"))
        served.gateway._fleet.served._refreshed_s = float("-inf")
        assert await chat(served, "adapter") == (200, "one")
        assert (await listed(served))["adapter"]["parent"] == "base"


async def test_unknown_models_query_the_replicas_once_a_second() -> None:
    engine = engine_of("one", "base")
    async with before_engines(engine) as served:
        before = engine.lists
        now_s = served.gateway._clock.monotonic_s()
        served.gateway._fleet.served._refreshed_s = now_s + 3600.0
        found = await asyncio.gather(*(chat(served, f"unknown {number}") for number in range(50)))
        assert set(found) == {(404, "model_not_found")}
        assert engine.lists == before
        served.gateway._fleet.served._refreshed_s = float("-inf")
        await asyncio.gather(*(chat(served, f"unknown {number}") for number in range(50)))
        assert engine.lists <= before + 1 + int(served.gateway._clock.monotonic_s() - now_s)


@pytest.mark.heavy
async def test_unloaded_adapter_is_retried_on_another_replica() -> None:
    one, two = engine_of("one", "base", "adapter"), engine_of("two", "base", "adapter")
    async with before_engines(one, two) as served:
        del one.models[1]
        for _ in range(8):
            assert await chat(served, "adapter") == (200, "two")
        rows = served.gateway._fleet.served.rows
        if any(sent.model == "adapter" for sent in one.sent):
            await until(lambda: len(rows("adapter")) == 1)
        assert served.gateway.health()[1]["replicas"] == {"available": 2, "known": 2}


async def test_model_of_a_dead_replica_is_not_unknown() -> None:
    one, two = engine_of("one", "a"), engine_of("two", "b")
    async with before_engines(one, two, relay={"absent_s": 0.1}) as served:
        await two.stop()
        assert await chat(served, "b") in ((503, "no_replica"), (502, "replica_failed"))
        assert await chat(served, "a") == (200, "one")
        assert await chat(served, "c") == (404, "model_not_found")


async def test_model_is_unknown_only_after_all_replicas_answered() -> None:
    away = "http://127.0.0.1:9"
    async with before_engines(engine_of("one", "a"), also=(away,)) as served:
        assert await chat(served, "a") == (200, "one")
        assert await chat(served, "b") == (503, "no_replica")


async def test_alias_changes_the_name_only() -> None:
    engine = engine_of("one", "org/model")
    async with before_engines(engine, models={"gpt": "org/model"}) as served:
        seed = 2**63 - 1
        assert await chat(served, "gpt", seed=seed, temperature=0.1) == (200, "one")
        sent = orjson.loads(engine.sent[0].body)
        assert (sent["model"], sent["seed"], sent["temperature"]) == ("org/model", seed, 0.1)
        assert await chat(served, "org/model") == (200, "one")
        cards = await listed(served)
        assert cards["gpt"] == {**card("org/model"), "id": "gpt"}
        async with served.session.get(served.url + "/v1/models/gpt") as response:
            assert (await response.json())["root"] == "/models/org/model"


async def test_alias_in_a_form_changes_the_model_name_only() -> None:
    path = "/v1/audio/transcriptions"
    engine = CannedEngine([card("whisper-large")], {path: Canned(b"{}")})
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%s\r\n--b\r\n'
    form += b'Content-Disposition: form-data; name="file"; filename="x"\r\n\r\n\x00\xff\r\n\r\n--b--\r\n'
    async with before_engines(engine, models={"w": "whisper-large"}) as served:
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        async with served.session.post(served.url + path, data=form % b"w", headers=headers) as response:
            assert response.status == 200
        assert engine.sent[0].body == form % b"whisper-large"


@pytest.mark.heavy
async def test_fallback_model_answers_while_the_model_is_away() -> None:
    one, two = engine_of("one", "large"), engine_of("two", "small")
    models = {"chat": {"to": "large", "fallback": "small"}, "other": "large"}
    async with before_engines(one, two, models=models, relay={"absent_s": 0.1}) as served:
        assert await chat(served, "chat") == (200, "one")
        await one.stop()
        assert await chat(served, "chat") == (200, "two")
        assert (await chat(served, "other"))[0] in (502, 503)
        assert await served.metric('forebay_gateway_retries_total{cause="fallback"}') >= 1


async def test_alias_of_an_unserved_model_is_not_available() -> None:
    async with before_engines(engine_of("one", "a"), models={"chat": "b"}) as served:
        assert await chat(served, "chat") == (503, "no_replica")
        assert sorted(await listed(served)) == ["a"]


@pytest.mark.heavy
async def test_canary_gets_its_share_and_sessions_are_sticky() -> None:
    models = {"chat": {"to": {"stable": 3, "canary": 1}}}
    async with before_engines(
        engine_of("stable", "stable"), engine_of("canary", "canary"), models=models
    ) as served:
        alone = {await chat(served, "chat", prompt_cache_key="session 1") for _ in range(5)}
        assert len(alone) == 1
        found = Counter([(await chat(served, "chat", user=f"user {number}"))[1] for number in range(40)])
        expected = Counter(Alias({"stable": 3, "canary": 1}).choose(f"user {number}") for number in range(40))
        assert found == expected
        assert 3 <= found["canary"] <= 18


@given(
    weights=st.dictionaries(st.text(min_size=1, max_size=5), st.floats(1e-6, 1e6), min_size=1, max_size=5),
    key=st.text(max_size=20),
)
def test_model_choice_per_key_is_deterministic(weights: dict[str, float], key: str) -> None:
    alias = Alias(weights)
    assert alias.choose(key) in weights
    assert alias.choose(key) == alias.choose(key)


def test_model_shares_follow_the_weights() -> None:
    alias = Alias({"a": 90.0, "b": 9.0, "c": 1.0})
    found = Counter(alias.choose(str(number)) for number in range(10_000))
    assert found["a"] == pytest.approx(9000, abs=150)
    assert found["b"] == pytest.approx(900, abs=100)
    assert found["c"] == pytest.approx(100, abs=40)


@pytest.mark.heavy
async def test_request_without_a_model_uses_the_only_base_model() -> None:
    canned = {"/tokenize": Canned(b'{"count":1}')}
    base, adapter, other = card("base"), card("adapter", parent="base"), card("other")
    for cards, status in (([base, adapter], 200), ([base, other], 400)):
        async with before_engines(CannedEngine(cards, canned)) as served:
            response = await served.session.post(served.url + "/tokenize", json={"prompt": "a"})
            assert response.status == status


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({"a": "b", "b": "c"}, r"models\.a: expected models that replicas serve, found the alias 'b'"),
        ({"a": {"to": {"x": 1}, "fallback": "b"}, "b": "c"}, "found the alias 'b'"),
        ({"a": {"to": {}}}, r"models\.a\.to"),
        ({"a": {"to": {"x": 0}}}, r"models\.a\.to\.x: .*> 0|above 0|greater"),
        ({"a": {"fallback": "x"}}, r"models\.a\.to"),
    ],
)
def test_invalid_aliases_are_rejected(models: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        spec_of(["http://127.0.0.1:1"], models=models)


def test_name_may_be_its_own_alias() -> None:
    spec = spec_of(["http://127.0.0.1:1"], models={"m": {"to": {"m": 95, "m-canary": 5}}})
    assert spec.models["m"].to == {"m": 95, "m-canary": 5}
