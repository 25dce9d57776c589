"""The OpenAI protocol: requests, and parsing of events."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from forebay.bench.client import measure
from forebay.bench.load.schedules import ClosedLoop, make_load
from forebay.bench.load.workloads import Exactly, RandomTokens
from forebay.bench.records import LoadRequest
from forebay.bench.targets.base import NOTHING, TRIAL, EventReader, Piece, trial_requests
from forebay.bench.targets.openai import OpenAiOptions, OpenAiTarget
from forebay.clients.http.readers import AnswerHead
from forebay.engine.failures import Redactor
from forebay.errors import (
    BadRequest,
    EngineError,
    ModelNotFound,
    ProtocolViolation,
    RateLimited,
    ServerFault,
    SettingError,
    Unauthorized,
    Unreachable,
)
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.script import Fixed
from forebay.testing.stream_server import DONE, ScriptedAnswer, ScriptedRequest, StreamServer, event, whole
from forebay.testing.waiting import wait_until

Ask = Callable[..., list[Piece]]
REQUEST = LoadRequest(0, 0.0, array("I", [5, 6, 7]), 4, prompt_tokens=3)
TEXT = LoadRequest(0, 0.0, "Hello", 4)
MODELS = whole({"data": [{"id": "m"}]})
TOLD = OpenAiOptions(model="m", extensions=True)


def completion(text: str | None = "a", reason: str | None = None, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": reason}], **more})


def delta(reason: str | None = None, usage: dict[str, int] | None = None, **delta: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": usage})


def used(completion_tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": 3, "completion_tokens": completion_tokens, **more}


def at_once(*pieces: bytes, **options: Any) -> ScriptedAnswer:
    return ScriptedAnswer(tuple((0.0, piece) for piece in pieces), **options)


def answers(answer: ScriptedAnswer) -> Callable[[ScriptedRequest], ScriptedAnswer]:
    return lambda asked: answer if asked.method == "POST" else MODELS


def contents(pieces: Sequence[Piece]) -> list[int | None]:
    return [piece.tokens for piece in pieces if piece.content]


def last(pieces: Sequence[Piece], name: str) -> Any:
    told = [getattr(piece, name) for piece in pieces if getattr(piece, name) is not None]
    return told[-1] if told else None


def test_request_to_vllm(ask: Ask) -> None:
    with StreamServer(answers(at_once(completion("a", "length"), DONE))) as server:
        ask(OpenAiTarget(server.url + "/v1/", TOLD), REQUEST)
        (asked,) = server.asked
    assert asked.path == "/v1/completions"
    assert orjson.loads(asked.body) == {
        "model": "m",
        "prompt": [5, 6, 7],
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
        "min_tokens": 4,
    }


def test_request_to_a_server_without_extensions(ask: Ask) -> None:
    """A server that rejects unknown fields gets only those of OpenAI's own protocol."""

    def strict(asked: ScriptedRequest) -> ScriptedAnswer:
        if asked.method == "GET":
            return MODELS
        if b"ignore_eos" in asked.body:
            return whole({"error": {"message": "Unrecognized request argument", "code": None}}, 400)
        return at_once(delta(content="Hi"), delta("length"), DONE)

    options = OpenAiOptions(chat=True, extra={"top_p": 0.5})
    with StreamServer(strict) as server:
        target = OpenAiTarget(server.url, options)
        ask(target, TEXT)
        assert [asked.path for asked in server.asked] == ["/v1/models", *["/v1/chat/completions"] * 3]
        assert not target.extensions
        assert orjson.loads(server.asked[-1].body) == {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 4,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "top_p": 0.5,
        }


def test_tokens_of_each_event_by_continuous_usage(ask: Ask) -> None:
    answer = at_once(
        completion("a", usage=used(1)),
        completion("", usage=used(1)),
        # Two tokens at once; one that has no text; the last, with the end.
        completion("bc", usage=used(3)),
        completion("", usage=used(4)),
        completion("d", "length", usage=used(5)),
        event({"choices": [], "usage": used(5, prompt_tokens_details={"cached_tokens": 2})}),
        DONE,
    )
    with StreamServer(answers(answer)) as server:
        pieces = ask(OpenAiTarget(server.url, TOLD), REQUEST)
    assert pieces[0] == Piece(status=200)
    assert contents(pieces) == [1, 2, 1, 1]
    assert last(pieces, "output_tokens") == 5
    assert last(pieces, "prompt_tokens") == 3
    assert last(pieces, "cached_tokens") == 2
    assert last(pieces, "finish_reason") == "length"


def test_tokens_of_each_event_by_their_ids(ask: Ask) -> None:
    one = event({"choices": [{"index": 0, "text": "ab", "finish_reason": None, "token_ids": [7, 8]}]})
    with StreamServer(answers(at_once(one, completion("", "stop"), DONE))) as server:
        pieces = ask(OpenAiTarget(server.url, TOLD), REQUEST)
    assert contents(pieces) == [2]


def test_a_server_that_reports_no_counts(ask: Ask) -> None:
    with StreamServer(answers(at_once(completion(), completion(), completion("", "stop"), DONE))) as server:
        pieces = ask(OpenAiTarget(server.url, TOLD), REQUEST)
    assert contents(pieces) == [None, None]
    assert last(pieces, "output_tokens") is None


@pytest.mark.parametrize("tokens", [-1, 1 << 31, 1 << 63])
def test_a_count_that_no_answer_has_breaks_the_protocol(ask: Ask, tokens: int) -> None:
    answer = at_once(completion("a", usage=used(tokens)), DONE)
    with StreamServer(answers(answer)) as server, pytest.raises(ProtocolViolation):
        ask(OpenAiTarget(server.url, TOLD), REQUEST)


def test_first_chunk_without_content_is_ignored(ask: Ask) -> None:
    answer = at_once(
        delta(role="assistant", content=""),
        delta(reasoning_content="Hmm"),
        delta(content="Hi"),
        delta("stop"),
        DONE,
    )
    options = OpenAiOptions(model="m", chat=True, extensions=True)
    with StreamServer(answers(answer)) as server:
        pieces = ask(OpenAiTarget(server.url, options), TEXT)
    assert [piece.content for piece in pieces] == [False, False, True, True, False]


@pytest.mark.parametrize(
    "part",
    [
        {"content": "Hi"},
        {"reasoning": "Hmm"},
        {"reasoning_content": "Hmm"},
        {"refusal": "No."},
        {"tool_calls": [{"index": 0, "id": "call-1", "function": {"name": "look_up", "arguments": ""}}]},
        {"function_call": {"name": "look_up", "arguments": ""}},
    ],
    ids=lambda part: next(iter(part)),
)
def test_every_part_of_a_delta_has_a_first_token(ask: Ask, part: dict[str, Any]) -> None:
    begin = delta(role="assistant", content="", tool_calls=[], refusal=None)
    with StreamServer(answers(at_once(begin, delta(**part), delta("stop"), DONE))) as server:
        pieces = ask(OpenAiTarget(server.url, OpenAiOptions(model="m", chat=True, extensions=True)), TEXT)
    assert [piece.content for piece in pieces] == [False, False, True, False]


@pytest.mark.parametrize("status", [400, 422, 500])
def test_a_server_without_token_ids_is_found_before_the_load(status: int) -> None:
    def texts_only(asked: ScriptedRequest) -> ScriptedAnswer:
        if asked.method == "GET":
            return MODELS
        if isinstance(orjson.loads(asked.body)["prompt"], list):
            return whole({"error": {"message": "prompt: expected a string"}}, status)
        return at_once(completion("a", "length"), DONE)

    load = make_load(ClosedLoop(1), RandomTokens(Exactly(64), Exactly(2)), 3)
    with StreamServer(texts_only) as server:
        with pytest.raises(SettingError, match=r"not token ids.*--protocol chat.*expected a string"):
            measure(OpenAiTarget(server.url), load)
        prompts = [orjson.loads(asked.body)["prompt"] for asked in server.asked if asked.method == "POST"]
    assert load.requests[0].prompt not in prompts, "the load began"


def test_the_trial_has_the_form_of_the_load() -> None:
    tokens, text = replace(REQUEST, prompt=list(range(50)), exact=False), replace(TEXT, exact=True)
    trials = trial_requests([tokens, text, tokens])
    assert [(one.prompt, one.exact) for one in trials] == [(TRIAL.prompt, True), ([0, 1, 2, 3], False)]
    assert trial_requests([text]) == (TRIAL,)


def test_chunking_does_not_change_the_events(ask: Ask) -> None:
    data = (
        completion("a", usage=used(1)) + b": ping\r\n\r\n" + completion("b", "length", usage=used(2)) + DONE
    )
    for size in (1, 3, 7, 50):
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        with StreamServer(answers(at_once(*parts))) as server:
            assert contents(ask(OpenAiTarget(server.url, TOLD), REQUEST)) == [1, 1]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (whole({"error": {"message": "slow down", "code": 429}}, 429), RateLimited, "slow down"),
        (whole({"error": {"message": "no such model"}}, 404), ModelNotFound, "no such model"),
        (whole({"detail": "bad key sk-secret"}, 401), Unauthorized, r"bad key \[API key\]"),
        (whole({"choices": []}), ProtocolViolation, "no event stream but 'application/json'"),
        (at_once(completion(), event({"error": {"message": "out of memory"}})), ServerFault, "out of memory"),
        (at_once(completion(), b"data: {nonsense\n\n"), ProtocolViolation, "not of its protocol"),
        (at_once(b"<html>\n\n"), ProtocolViolation, "not an event stream"),
        (at_once(event([1])), ProtocolViolation, "not of its protocol"),
        (at_once(event({"choices": [{}]})), ProtocolViolation, r"\(KeyError\)"),
        (at_once(completion(usage={"completion_tokens": -1})), ProtocolViolation, "ValueError"),
        (at_once(completion(usage={"completion_tokens": True})), ProtocolViolation, "ValueError"),
        (at_once(completion()), Unreachable, "ended its answer before it was complete"),
        (at_once(completion(), ends=False), Unreachable, "closed the connection in the middle"),
        (at_once(completion("a", "length"), ends=False), Unreachable, "closed the connection in the middle"),
    ],
)
def test_errors_are_reported(ask: Ask, answer: ScriptedAnswer, error: type[EngineError], words: str) -> None:
    options = OpenAiOptions(model="m", extensions=True, api_key="sk-secret")
    seen: list[Piece] = []
    with (
        StreamServer(answers(answer)) as server,
        pytest.raises(error, match=words),
    ):
        ask(OpenAiTarget(server.url, options), REQUEST, seen)
    assert seen[0] == Piece(status=answer.status)


@pytest.mark.heavy
def test_answer_is_complete_after_done(ask: Ask) -> None:
    """An endless body costs the connection, but not the answer."""
    answer = ScriptedAnswer(((0.0, completion("a", "length") + DONE), (3600.0, b": ping\n\n")))
    with StreamServer(answers(answer)) as server:
        assert contents(ask(OpenAiTarget(server.url, TOLD), REQUEST)) == [None]


@pytest.mark.parametrize(
    ("models", "error", "words"),
    [
        (whole({"data": [{"id": "a"}, {"id": "b"}]}), SettingError, r"serves 2 models \(a, b\): name one"),
        (whole({"data": []}), SettingError, "serves 0 models"),
        (whole({"models": 1}), ProtocolViolation, "did not list its models"),
        (whole({"error": "not here"}, 404), ModelNotFound, "not here"),
    ],
)
def test_unknown_model(ask: Ask, models: ScriptedAnswer, error: type[Exception], words: str) -> None:
    with StreamServer(lambda _: models) as server, pytest.raises(error, match=words):
        ask(OpenAiTarget(server.url), REQUEST)


def test_initially_overloaded_server_is_measured(ask: Ask) -> None:
    refusals = [whole({"error": "full"}, 503)]
    answer = at_once(completion("a", "length"), DONE)

    def first_refuse(asked: ScriptedRequest) -> ScriptedAnswer:
        if asked.method == "GET":
            return MODELS
        return refusals.pop() if refusals else answer

    with StreamServer(first_refuse) as server:
        assert contents(ask(OpenAiTarget(server.url), REQUEST)) == [None]
    with StreamServer(answers(whole({"error": "no key"}, 401))) as server:
        with pytest.raises(Unauthorized):
            ask(OpenAiTarget(server.url), REQUEST)
        assert [asked.method for asked in server.asked] == ["GET", "POST"], "it does not begin"


def test_connections_are_used_again_and_an_abort_closes_one() -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.0))) as replica:

        async def run() -> None:
            target = OpenAiTarget(replica.url)
            async with target.open():
                for _ in range(3):
                    await target.answer(TEXT, lambda _: None)
                assert target._server is not None
                assert len(target._server._open) == 1
                hang = LoadRequest(0, 0.0, "((fault:hang))", 4)
                task = asyncio.create_task(target.answer(hang, lambda _: None))
                await asyncio.to_thread(wait_until, lambda: replica.report().in_flight == 1)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await asyncio.to_thread(wait_until, lambda: replica.report().aborted == 1)
                await target.answer(TEXT, lambda _: None)

        asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("fault", ["500", "503", "refuse", "cut", "garbage", "binary", "error"])
def test_a_server_that_misbehaves(ask: Ask, fault: str) -> None:
    with ReplicaThread(ReplicaScript(delay=Fixed(0.0))) as replica, pytest.raises(EngineError):
        ask(OpenAiTarget(replica.url), LoadRequest(0, 0.0, f"((fault:{fault}))", 4))


def test_total_in_the_last_chunk_is_not_its_own_count(ask: Ask) -> None:
    answer = at_once(completion("a"), completion("b"), completion("", "length", usage=used(2)), DONE)
    with StreamServer(answers(answer)) as server:
        pieces = ask(OpenAiTarget(server.url, TOLD), REQUEST)
    assert contents(pieces) == [None, None]
    assert last(pieces, "output_tokens") == 2


def test_chat_takes_no_tokens(ask: Ask) -> None:
    options = OpenAiOptions(model="m", chat=True, extensions=True)
    with (
        StreamServer(answers(at_once(DONE))) as server,
        pytest.raises(BadRequest, match="takes no prompts of tokens"),
    ):
        ask(OpenAiTarget(server.url, options), REQUEST)


def test_compressed_answer_is_named() -> None:
    reader = EventReader("http://s", "m", Redactor(), lambda _: NOTHING, lambda _: None)
    headers = [(b"Content-Type", b"text/event-stream"), (b"Content-Encoding", b"gzip")]
    with pytest.raises(ProtocolViolation, match="http://s sent a compressed answer"):
        reader.head(AnswerHead(200, headers))
    reader.head(AnswerHead(503, headers))
