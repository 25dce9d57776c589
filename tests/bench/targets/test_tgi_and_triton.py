"""Servers with protocols of their own, scripted from their documentation: TGI's OpenAPI document, and
Triton's generate extension with the requests that its vLLM and TensorRT-LLM backends show."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from forebay.bench.records import LoadRequest
from forebay.bench.targets.base import Piece, Target
from forebay.bench.targets.others import TENSORRT_LLM, TgiTarget, TritonOptions, TritonTarget
from forebay.errors import (
    BadRequest,
    EngineError,
    ModelNotFound,
    Overloaded,
    ProtocolViolation,
    RateLimited,
    ServerFault,
    SettingError,
    Unreachable,
)
from forebay.testing.stream_server import ScriptedAnswer, StreamServer, event, whole

Ask = Callable[..., list[Piece]]
REQUEST = LoadRequest(0, 0.0, "Hello", 3)


def token(text: str, **more: Any) -> bytes:
    """In TGI's format: without a blank after the colon."""
    document = {
        "index": 1,
        "token": {"id": 42, "text": text, "logprob": -0.5, "special": False},
        "generated_text": None,
        "details": None,
        **more,
    }
    return b"data:" + orjson.dumps(document) + b"\n\n"


END = token(
    " c",
    generated_text="a b c",
    details={"finish_reason": "length", "generated_tokens": 3, "seed": None, "input_length": 5},
)


def text(value: str) -> bytes:
    return event({"model_name": "m", "model_version": "1", "text_output": value})


def at_once(*pieces: bytes, **options: Any) -> ScriptedAnswer:
    return ScriptedAnswer(tuple((0.0, piece) for piece in pieces), **options)


def test_tgi(ask: Ask) -> None:
    with StreamServer(lambda _: at_once(token("a"), token(" b"), END)) as server:
        pieces = ask(TgiTarget(server.url), REQUEST)
        trial, asked = server.asked
    assert trial.path == asked.path
    assert asked.path == "/generate_stream"
    assert orjson.loads(asked.body) == {
        "inputs": "Hello",
        "parameters": {"max_new_tokens": 3, "details": True, "do_sample": False},
    }
    assert [piece.tokens for piece in pieces if piece.content] == [1, 1, 1]
    assert pieces[-1] == Piece(True, 1, 5, 3, None, "length")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (whole({"error": "Model is overloaded", "error_type": "overloaded"}, 429), RateLimited),
        (whole({"error": "Input validation error", "error_type": "validation"}, 422), BadRequest),
        (at_once(token("a"), b'data:{"error":"Overloaded","error_type":"overloaded"}\n\n'), Overloaded),
        (at_once(token("a"), b'data:{"error":"CUDA","error_type":"generation"}\n\n'), ServerFault),
        (at_once(token("a")), Unreachable),
        (at_once(event({"text": "a"})), ProtocolViolation),
        (at_once(token("a", details={"finish_reason": "length"})), ProtocolViolation),
    ],
)
def test_tgi_that_fails(ask: Ask, answer: ScriptedAnswer, error: type[EngineError]) -> None:
    with StreamServer(lambda _: answer) as server, pytest.raises(error):
        ask(TgiTarget(server.url), REQUEST)


def test_triton_with_vllm(ask: Ask) -> None:
    options = TritonOptions(model="my model", extra={"top_k": 1})
    with StreamServer(lambda _: at_once(text(""), text("a"), text(" b"))) as server:
        pieces = ask(TritonTarget(server.url, options), REQUEST)
        trial, asked = server.asked
    assert trial.path == asked.path
    assert asked.path == "/v2/models/my%20model/generate_stream"
    assert orjson.loads(asked.body) == {
        "text_input": "Hello",
        "parameters": {
            "stream": True,
            "temperature": 0,
            "max_tokens": 3,
            "exclude_input_in_output": True,
            "ignore_eos": True,
            "min_tokens": 3,
            "top_k": 1,
        },
    }
    assert [piece.tokens for piece in pieces if piece.content] == [None, None]
    assert all(piece.finish_reason is None and piece.output_tokens is None for piece in pieces)


def test_triton_with_tensorrt_llm(ask: Ask) -> None:
    options = TritonOptions(model="ensemble", backend=TENSORRT_LLM, extra={"end_id": -1})
    with StreamServer(lambda _: at_once(text("a"))) as server:
        ask(TritonTarget(server.url, options), REQUEST)
        trial, asked = server.asked
    assert trial.path == asked.path
    assert orjson.loads(asked.body) == {
        "text_input": "Hello",
        "max_tokens": 3,
        "bad_words": "",
        "stop_words": "",
        "stream": True,
        "end_id": -1,
    }


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (whole({"error": "Request for unknown model: 'm' is not found"}, 404), ModelNotFound),
        (whole({"error": "out of memory"}, 500), ServerFault),
        # The status is that of the first response: a later error comes with 200.
        (at_once(text("a"), event({"error": "out of memory"})), ServerFault),
        (at_once(text("a"), ends=False), Unreachable),
        (at_once(event({"output": "a"})), ProtocolViolation),
        (at_once(event({"text_output": 1})), ProtocolViolation),
    ],
)
def test_triton_that_fails(ask: Ask, answer: ScriptedAnswer, error: type[EngineError]) -> None:
    with StreamServer(lambda _: answer) as server, pytest.raises(error):
        ask(TritonTarget(server.url, TritonOptions(model="m")), REQUEST)


@pytest.mark.parametrize(
    ("make", "answer"),
    [(TgiTarget, END), (lambda url: TritonTarget(url, TritonOptions(model="m")), text("a"))],
    ids=["tgi", "triton"],
)
def test_neither_takes_tokens(ask: Ask, make: Callable[[str], Target], answer: bytes) -> None:
    tokens = LoadRequest(0, 0.0, array("I", [1]), 3)
    with (
        StreamServer(lambda _: at_once(answer)) as server,
        pytest.raises(BadRequest, match="takes no prompts"),
    ):
        ask(make(server.url), tokens)


def test_triton_needs_a_model_and_a_known_backend() -> None:
    with pytest.raises(SettingError, match="name the model"):
        TritonOptions(model="")
    with pytest.raises(SettingError, match="expected the backend vllm or tensorrtllm, found 'x'"):
        TritonOptions(model="m", backend="x")
