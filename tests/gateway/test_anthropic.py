"""The official client of Anthropic gets what Anthropic's own service would give it, errors included."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from tests.harness.engines import Canned, CannedEngine, card

from .conftest import before_engines

if TYPE_CHECKING:
    import anthropic

pytestmark = pytest.mark.heavy

ASKED: dict[str, Any] = {"model": "m", "max_tokens": 40, "messages": [{"role": "user", "content": "a"}]}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 1},
}
ANSWERED = {"/v1/messages": Canned(orjson.dumps(MESSAGE))}


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: ".encode() + orjson.dumps({"type": kind, **fields}) + b"\n\n"


BEGUN = (
    event("message_start", message={**MESSAGE, "content": [], "stop_reason": None}),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "hello"}),
)
ENDED = (
    event("content_block_stop", index=0),
    event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1}),
    event("message_stop"),
)


@asynccontextmanager
async def client_of(
    answers: dict[str, Canned], *, key: str = "sesame", **limits: Any
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    import anthropic  # Half a second or more, at each collection of the tests.

    keys = [{"name": "a", "key": {"env": "GATEWAY_KEY"}, **limits}]
    async with (
        before_engines(CannedEngine([card("m")], answers), keys=keys) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key=key, max_retries=0) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_KEY", "sesame")


async def test_a_message() -> None:
    async with client_of(ANSWERED) as client:
        answer = await client.messages.create(**ASKED)
        assert (answer.content[0].type, answer.usage.input_tokens) == ("text", 5)


async def test_streamed_message() -> None:
    async with (
        client_of({"/v1/messages": Canned(events=BEGUN + ENDED)}) as client,
        client.messages.stream(**ASKED) as stream,
    ):
        assert [text async for text in stream.text_stream] == ["hello"]


async def test_token_count_of_a_message() -> None:
    async with client_of({"/v1/messages/count_tokens": Canned(b'{"input_tokens":7}')}) as client:
        counted = await client.messages.count_tokens(model="m", messages=ASKED["messages"])
        assert counted.input_tokens == 7


@pytest.mark.parametrize(
    ("key", "asked", "error", "kind"),
    [
        ("wrong", {}, "AuthenticationError", "authentication_error"),
        ("sesame", {"model": "other"}, "NotFoundError", "not_found_error"),
        ("sesame", {"model": 7}, "BadRequestError", "invalid_request_error"),
    ],
)
async def test_errors_have_the_right_class(key: str, asked: dict[str, Any], error: str, kind: str) -> None:
    import anthropic

    async with client_of(ANSWERED, key=key) as client:
        with pytest.raises(getattr(anthropic, error)) as caught:
            await client.messages.create(**ASKED | asked)
        assert caught.value.body["error"]["type"] == kind  # type: ignore[call-overload,index]


async def test_too_many_requests_raise_the_clients_rate_limit_error() -> None:
    import anthropic

    async with client_of(ANSWERED, requests_per_s=0.001, burst=1) as client:
        await client.messages.create(**ASKED)
        with pytest.raises(anthropic.RateLimitError) as caught:
            await client.messages.create(**ASKED)
        assert int(caught.value.response.headers["retry-after"]) > 0


async def test_broken_stream_raises() -> None:
    import anthropic

    async with client_of({"/v1/messages": Canned(events=BEGUN, breaks=True)}) as client:
        texts = []

        async def read() -> None:
            async with client.messages.stream(**ASKED) as stream:
                texts.extend([text async for text in stream.text_stream])

        with pytest.raises(anthropic.APIError, match="broke off"):
            await read()


async def test_openais_client_reads_responses_and_recordings() -> None:
    import openai

    response = {"id": "resp_1", "object": "response", "model": "m", "output": [], "created_at": 1}
    answers = {
        "/v1/responses": Canned(orjson.dumps(response)),
        "/v1/audio/transcriptions": Canned(b'{"text":"hello"}'),
        "/v1/audio/speech": Canned(b"RIFF\x00", content_type="audio/wav"),
    }
    async with (
        before_engines(CannedEngine([card("m")], answers)) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="-", max_retries=0) as client,
    ):
        assert (await client.responses.create(model="m", input="a")).id == "resp_1"
        recording = ("a.wav", b"RIFF\r\n\r\n", "audio/wav")
        assert (await client.audio.transcriptions.create(model="m", file=recording)).text == "hello"
        spoken = await client.audio.speech.create(model="m", input="a", voice="v")
        assert spoken.content == b"RIFF\x00"
        assert (await client.models.retrieve("m")).owned_by == "vllm"
