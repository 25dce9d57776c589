"""Calls beyond chats, completions and embeddings: passed on as they are, if the engine has them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from tests.harness.engines import Canned, CannedEngine, Sent, card

from forebay.engine.protocol import CHAT_PATH
from forebay.gateway.routes import ROUTES

from .conftest import Served, before_engines

ANSWER = Canned(b'{"odd":  1.50}')
FORM = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
FORM_TYPE = "multipart/form-data; boundary=b"


async def post(
    served: Served, path: str, body: dict[str, Any] | bytes, **headers: str
) -> tuple[int, bytes, str]:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    headers = {"Content-Type": "application/json", **headers}
    async with served.session.post(served.url + path, data=data, headers=headers) as response:
        return response.status, await response.read(), response.headers.get("Content-Type", "")


def body_of(path: str) -> tuple[bytes, str]:
    """A body that the gateway lets through, and its type."""
    if ROUTES[path].form:
        return FORM, FORM_TYPE
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "prompt": "a", "input": "a"}
    return orjson.dumps(body), "application/json"


@pytest.mark.heavy
@pytest.mark.parametrize("path", ROUTES)
async def test_call_is_passed_on_byte_for_byte(path: str) -> None:
    engine = CannedEngine([card("m")], {ROUTES[path].at_replica: ANSWER})
    body, kind = body_of(path)
    async with before_engines(engine) as served:
        status, answer, _ = await post(served, path, body, **{"Content-Type": kind})
        assert (status, answer) == (200, ANSWER.body)
        assert [(sent.path, sent.body) for sent in engine.sent] == [(ROUTES[path].at_replica, body)]
        assert engine.sent[0].headers["Content-Type"] == kind
        labels = f'key="anyone",outcome="200",route="{path}"'
        assert await served.metric(f"forebay_gateway_requests_total{{{labels}}}") == 1


@pytest.mark.heavy
@pytest.mark.parametrize("path", ROUTES)
async def test_call_that_the_engine_lacks_is_a_clear_404(path: str) -> None:
    body, kind = body_of(path)
    async with before_engines(CannedEngine([card("m")])) as served:
        status, answer, _ = await post(served, path, body, **{"Content-Type": kind})
        error = orjson.loads(answer)["error"]
        assert status == 404
        assert f"the engine that serves 'm' has no {ROUTES[path].at_replica};" in error["message"]
        assert (
            error["type"] == "not_found_error" if "messages" in path else error["code"] == "unsupported_call"
        )


async def test_other_404_of_the_engine_is_passed_on() -> None:
    text = b'{"error":{"message":"Response with id \'resp_1\' not found.","type":"NotFoundError","code":404}}'
    engine = CannedEngine([card("m")], {"/v1/responses": Canned(text, 404)})
    async with before_engines(engine) as served:
        body = {"model": "m", "input": "a", "previous_response_id": "resp_1"}
        assert (await post(served, "/v1/responses", body))[:2] == (404, text)


@pytest.mark.heavy
@pytest.mark.parametrize("path", [path for path, route in ROUTES.items() if not route.needs_model])
async def test_engine_specific_call_needs_no_model(path: str) -> None:
    engine = CannedEngine([card("m")], {ROUTES[path].at_replica: ANSWER})
    async with before_engines(engine) as served:
        assert (await post(served, path, {"input": "a"}))[0] == 200
        assert engine.sent[0].body == b'{"input":"a"}'


async def test_openai_or_anthropic_call_needs_a_model() -> None:
    async with before_engines(CannedEngine([card("m")])) as served:
        for path, route in ROUTES.items():
            if route.needs_model and not route.form:
                status, answer, _ = await post(served, path, {})
                assert status == 400, path
                assert b"model: expected the name of a model, found none" in answer


async def test_anthropic_clients_use_their_key_header_and_error_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "sesame")
    keys = [{"name": "a", "key": {"env": "GATEWAY_KEY"}, "tokens_per_min": 50}]
    engine = CannedEngine([card("m")], {"/v1/messages": ANSWER})
    body = {"model": "m", "max_tokens": 40, "messages": [{"role": "user", "content": "a"}]}
    async with before_engines(engine, keys=keys) as served:
        found = []
        for key in ("wrong", "sesame", "sesame"):
            status, answer, _ = await post(served, "/v1/messages", body, **{"x-api-key": key})
            document = orjson.loads(answer)
            found.append((status, document.get("type"), document.get("error", {}).get("type")))
        assert found == [
            (401, "error", "authentication_error"),
            (200, None, None),
            (429, "error", "rate_limit_error"),
        ]
        assert "x-api-key" not in {name.lower() for name in engine.sent[0].headers}


@pytest.mark.parametrize(
    ("path", "event", "last"),
    [
        ("/v1/chat/completions", "", {"error"}),
        ("/v1/messages", "error", {"type", "error"}),
        ("/v1/responses", "error", {"type", "code", "message", "param", "sequence_number"}),
    ],
)
async def test_broken_stream_ends_with_an_error_in_its_apis_format(
    path: str, event: str, last: set[str]
) -> None:
    canned = Canned(events=(b'event: begun\ndata: {"a":1}\n\n',), breaks=True)
    body = {"model": "m", "stream": True, "input": "a", "messages": [{"role": "user", "content": "a"}]}
    async with before_engines(CannedEngine([card("m")], {path: canned})) as served:
        came = b""
        with contextlib.suppress(aiohttp.ClientError):
            async with served.session.post(served.url + path, json=body) as response:
                async for piece in response.content.iter_any():
                    came += piece
        *_, end = came.rstrip().split(b"\n\n")
        fields = dict(line.split(b": ", 1) for line in end.strip().splitlines())
        assert fields.get(b"event", b"").decode() == event
        assert set(orjson.loads(fields[b"data"])) == last


USED = {
    "/v1/responses": b'{"output":[],"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":2},'
    b'"output_tokens":9,"total_tokens":16}}',
    "/v1/messages": b'{"usage":{"input_tokens":5,"output_tokens":9,"cache_read_input_tokens":2}}',
    "/v1/rerank": b'{"usage":{"total_tokens":16},"results":[]}',
    "/v1/score": b'{"data":[],"usage":{"prompt_tokens":16,"total_tokens":16,"completion_tokens":0}}',
    "/tokenize": b'{"count":16,"tokens":[1]}',
    "/v1/messages/count_tokens": b'{"input_tokens":16}',
}


@pytest.mark.heavy
@pytest.mark.parametrize(("path", "answer"), USED.items())
async def test_tokens_of_a_call_are_those_of_the_engine(
    path: str, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "sesame")
    keys = [{"name": "a", "key": {"env": "GATEWAY_KEY"}, "tokens_per_min": 100_000}]
    async with before_engines(CannedEngine([card("m")], {path: Canned(answer)}), keys=keys) as served:
        body, _ = body_of(path)
        assert (await post(served, path, body, authorization="Bearer sesame"))[0] == 200
        used = 100_000 - served.gateway.keys._callers[0].usage._tokens._left
        assert used == (16 if ROUTES[path].costs else 0)


@pytest.mark.heavy
async def test_audio_upload_is_transcribed_unchanged() -> None:
    engine = CannedEngine(
        [card("m")], {"/v1/audio/transcriptions": Canned(b"hello", content_type="text/plain")}
    )
    form = aiohttp.FormData()
    recording = bytes(range(256)) * 4000
    form.add_field("file", recording, filename="a.wav", content_type="audio/wav")
    form.add_field("model", "m")
    form.add_field("response_format", "text")
    async with before_engines(engine) as served:
        url = served.url + "/v1/audio/transcriptions"
        async with served.session.post(url, data=form) as response:
            assert (response.status, await response.read()) == (200, b"hello")
        sent: Sent = engine.sent[0]
        assert sent.model == "m"
        assert recording in sent.body


@pytest.mark.heavy
async def test_twenty_megabyte_images_are_accepted() -> None:
    url = "data:image/png;base64," + "A" * (20 << 20)
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    engine = CannedEngine([card("m")], {"/v1/chat/completions": ANSWER})
    async with before_engines(engine) as served:
        assert (await post(served, "/v1/chat/completions", body))[0] == 200
        assert len(engine.sent[0].body) > 20 << 20


async def test_model_list_keeps_the_engines_fields() -> None:
    cards = [card("org/base"), card("adapter", parent="org/base", root="/adapters/1")]
    async with before_engines(CannedEngine(cards)) as served:
        async with served.session.get(served.url + "/v1/models") as response:
            assert await response.json() == {"object": "list", "data": cards}
        for one in cards:
            async with served.session.get(f"{served.url}/v1/models/{one['id']}") as response:
                assert (response.status, await response.json()) == (200, one)
        async with served.session.get(served.url + "/v1/models/other") as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "model_not_found"
        labels = 'key="anyone",outcome="200",route="/v1/models/{model}"'
        assert await served.metric(f"forebay_gateway_requests_total{{{labels}}}") == 2


async def test_usage_may_be_removed_from_a_stream_with_a_length() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}
    counts = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
    stream = b"".join(
        b"data: %s\n\n" % part for part in (orjson.dumps(chunk), orjson.dumps(counts), b"[DONE]")
    )
    engine = CannedEngine([card("m")], {CHAT_PATH: Canned(stream, content_type="text/event-stream")})
    async with before_engines(engine) as served:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
        status, answer, _ = await post(served, CHAT_PATH, body)
    assert (status, answer) == (200, b"data: %s\n\ndata: [DONE]\n\n" % orjson.dumps(chunk))


@dataclass
class RefusesFirst(CannedEngine):
    refused: int = 0

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST" and not self.refused:
            self.refused = 1
            return web.Response(status=429)
        return await super()._handle(request)


async def test_call_refused_by_all_replicas_waits_and_is_retried() -> None:
    engines = [RefusesFirst([card("m")], {CHAT_PATH: ANSWER}) for _ in range(2)]
    async with before_engines(*engines) as served:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
        assert (await post(served, CHAT_PATH, body))[0] == 200
    assert [engine.refused for engine in engines] == [1, 1]
