"""The gateway before real vLLM: the official client, and the same bytes as without it."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any

import aiohttp
import openai
import orjson
import pytest

from .conftest import serving, spec_of, until

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("clients_ids")]

TRIES = 5
MODEL = "smollm2-135m-instruct"
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "seed": 1}


@pytest.fixture
def replica(local_engine: Any) -> str:
    return str(local_engine[0])


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"stream": True, "stream_options": {"include_usage": True}}, 200),
        ({}, 200),
        ({"temperature": -1}, 400),
    ],
)
async def test_answers_of_vllm_are_unchanged(replica: str, more: dict[str, Any], status: int) -> None:
    async with serving(spec_of([replica])) as served:

        async def ask(url: str, salt: str) -> tuple[int, str, bytes]:
            headers = {"X-Request-Id": "same"}
            # Salted, so that the second finds no more in the prefix cache than the first.
            body = ASKED | {"temperature": 0.0, "cache_salt": salt} | more
            async with served.session.post(
                f"{url}/v1/chat/completions", json=body, headers=headers
            ) as response:
                # Only the moment differs.
                text = re.sub(rb'"created": ?[0-9]+', b"", await response.read())
                return response.status, response.headers["Content-Type"], text

        for number in range(TRIES):
            direct = await ask(replica, f"vllm {number}")
            passed_on = await ask(served.url, f"gateway {number}")
            # With requests of others in its batch, vLLM itself may answer differently the second time.
            if direct == passed_on:
                break
        assert direct == passed_on
        assert direct[0] == status


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": PARAMETERS}}
PROMPT = {"model": MODEL, "prompt": "Say hello.", "max_tokens": 12, "seed": 1}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", ASKED | {"stream": True, "stream_options": {"include_usage": True}}),
        ("chat/completions", ASKED | {"logprobs": True, "top_logprobs": 2, "min_tokens": 4}),
        ("chat/completions", ASKED | {"max_tokens": None, "max_completion_tokens": 9}),
        ("chat/completions", ASKED | {"response_format": SCHEMA}),
        ("chat/completions", ASKED | {"tools": TOOLS, "tool_choice": "none"}),
        ("completions", PROMPT | {"logprobs": 2}),
        ("completions", PROMPT | {"prompt": [1, 2, 3, 4], "stream": True}),
    ],
)
async def test_vllm_accepts_the_prefill_of_every_request_form(
    replica: str, path: str, body: dict[str, Any]
) -> None:
    """Without a KV connector it gives no KV cache, and answers what it answers anyway."""
    async with serving(spec_of([replica], engine={"prefill": replica})) as served:

        async def ask(url: str) -> tuple[int, bytes]:
            asked = body | {"temperature": 0.0}
            headers = {"X-Request-Id": "same"}
            async with served.session.post(f"{url}/v1/{path}", json=asked, headers=headers) as response:
                text = re.sub(rb'"created": ?[0-9]+', b"", await response.read())
                text = re.sub(rb'"prompt_tokens_details":({[^}]*}|null)', b"", text)
                # In the event with the count, which this client does not get, or else in the last one.
                text = re.sub(rb',"system_fingerprint":"[^"]*"', b"", text)
                return response.status, text

        tries = 0
        while tries < TRIES:
            tries += 1
            direct, passed_on = await ask(replica), await ask(served.url)
            # A busy vLLM may put two tokens into one chunk.
            if direct == passed_on:
                break
        assert direct == passed_on
        assert direct[0] == 200
        assert await served.metric('forebay_gateway_kv_fallbacks_total{cause="no_kv_cache"}') == tries


async def test_official_client(replica: str) -> None:
    async with (
        serving(spec_of([replica])) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == [MODEL]
        whole = await client.chat.completions.create(**ASKED, temperature=0.0)
        stream = await client.chat.completions.create(**ASKED, temperature=0.0, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == whole.choices[0].message.content
        assert len(pieces) > 5
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await client.completions.create(model=MODEL, prompt="hello " * 2000, max_tokens=8)


async def test_disconnect_aborts_the_request_at_vllm(replica: str) -> None:
    async with serving(spec_of([replica])) as served:
        body = ASKED | {"max_tokens": 400, "ignore_eos": True, "stream": True}
        async with aiohttp.ClientSession() as session:
            response = await session.post(f"{served.url}/v1/chat/completions", json=body)
            await response.content.readany()
            response.close()
        await until(lambda: served.gateway.in_flight == 0)
        while True:
            async with served.session.get(f"{replica}/metrics") as metrics:
                running = re.search(r"^vllm:num_requests_running\{.*\} (.*)$", await metrics.text(), re.M)
            assert running is not None
            if float(running[1]) == 0:
                return


STRICTER = {"chat-error-handling", "error-handling", "compact-missing-model", "compact-response"}
"""vLLM answers a request without a model, against OpenAI's rules, and a call that it lacks with a 405."""


@pytest.mark.parametrize("profile", ["openai-chat", "open-responses", "anthropic"])
@pytest.mark.slow
async def test_llm_comply_verdicts_are_the_same_through_the_gateway(replica: str, profile: str) -> None:
    async with serving(spec_of([replica])) as served:
        without, through = [await _verdicts(url, profile) for url in (replica, served.url)]
    assert set(without) == set(through)
    changed = {id for id in without if without[id] != through[id]}
    assert changed <= STRICTER
    assert {through[id] for id in changed} <= {"passed"}


async def _verdicts(url: str, profile: str) -> dict[str, str]:
    """What llm-comply finds, by test."""
    command = [sys.executable, "-m", "llm_comply.cli", "--format", profile, "--base-url", f"{url}/v1"]
    asked = ["--api-key", "none", "--model", MODEL, "--json"]
    run = await asyncio.create_subprocess_exec(*command, *asked, stdout=asyncio.subprocess.PIPE)
    out, _ = await run.communicate()
    return {one["id"]: one["status"] for one in orjson.loads(out)["results"]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"model": MODEL, "input": "Say hello.", "max_output_tokens": 8}),
        ("/v1/messages", {"model": MODEL, "max_tokens": 8, "messages": ASKED["messages"]}),
        ("/v1/messages/count_tokens", {"model": MODEL, "messages": ASKED["messages"]}),
        ("/tokenize", {"prompt": "Say hello."}),
        ("/detokenize", {"model": MODEL, "tokens": [1, 2, 3]}),
    ],
)
async def test_calls_that_vllm_supports(replica: str, path: str, body: dict[str, Any]) -> None:
    async with serving(spec_of([replica])) as served:
        response = await served.session.post(served.url + path, json=body)
        assert response.status == 200, await response.text()


async def test_calls_that_this_vllm_does_not_support(replica: str) -> None:
    async with serving(spec_of([replica])) as served:
        for path in ("/v1/score", "/v1/rerank", "/v1/classify", "/pooling", "/v1/embeddings"):
            body = {"model": MODEL, "input": "a", "query": "a", "documents": ["a"], "queries": "a"}
            async with served.session.post(served.url + path, json=body) as response:
                assert response.status == 404
                assert (await response.json())["error"]["code"] == "unsupported_call"


async def test_models_are_listed_as_vllm_lists_them(replica: str) -> None:
    async with serving(spec_of([replica])) as served:
        found = []
        for url in (replica, served.url):
            async with served.session.get(f"{url}/v1/models") as response:
                # Only the moment and the random ids differ.
                text = re.sub(r'"(created|id)": ?("modelperm-[^"]*"|[0-9]+)', "", await response.text())
                found.append(orjson.loads(text.replace("{,", "{").replace(",,", ",")))
        assert found[0] == found[1]
