"""The official client gets what OpenAI's own service would give it, and its errors are of the right class."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from forebay.testing.replica import ReplicaScript
from forebay.testing.script import Fixed

from .conftest import CHAT, on_thread

MESSAGES = CHAT["messages"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "a").write_text("sk-a\n")
    (folder / "b").write_text("sk-b\n")
    keys = [
        {"name": "a", "key": {"file": str(folder / "a")}},
        {"name": "b", "key": {"file": str(folder / "b")}, "requests_per_s": 0.001, "burst": 1},
    ]
    with on_thread(ReplicaScript(delay=Fixed(0.0), chunks=3), keys=keys) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-a", max_retries=0) as client:
        yield client


def test_chat_completion(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="fake", messages=MESSAGES)
    assert answer.choices[0].message.content == "echo:aaf4c61ddcc5"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_streamed_chat_completion(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
    pieces = [chunk.choices[0].delta.content for chunk in stream]
    assert len(pieces) == 4
    assert "".join(piece or "" for piece in pieces) == "echo:aaf4c61ddcc5"


def test_text_completion(client: openai.OpenAI) -> None:
    assert client.completions.create(model="fake", prompt="hello").choices[0].text == "echo:aaf4c61ddcc5"


def test_embeddings(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="fake", input=["a", "b", "a"])
    first, second, third = (item.embedding for item in answer.data)
    assert len(first) == 8
    assert first == third != second


def test_model_list(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]


def test_wrong_key_is_401(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        client.with_options(api_key="sk-wrong").models.list()
    assert caught.value.code == "invalid_api_key"
    assert "sk-wrong" not in str(caught.value)


def test_exhausted_key_is_429(client: openai.OpenAI) -> None:
    other = client.with_options(api_key="sk-b")
    other.models.list()
    with pytest.raises(openai.RateLimitError) as caught:
        other.models.list()
    assert caught.value.code == "rate_limit_exceeded"
    assert int(caught.value.response.headers["retry-after"]) > 900
    client.models.list()


def test_unserved_model_is_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="another", messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_rejected_requests_raise_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=[])
    assert caught.value.param == "messages"


def test_engine_refusals_keep_their_text(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.completions.create(model="fake", prompt="x" * 200_000)


def test_error_500_of_the_only_replica(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="scripted fault 500"):
        client.completions.create(model="fake", prompt="((fault:500))")


@pytest.mark.heavy
def test_client_timeout_aborts_at_the_replica(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model="fake", prompt="((fault:hang))", timeout=0.3)
    assert client.completions.create(model="fake", prompt="hello").choices


def test_broken_answer_is_an_error(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="fake", prompt="((fault:cut))", stream=True)
    with pytest.raises(openai.APIError, match="broke off"):
        list(stream)
