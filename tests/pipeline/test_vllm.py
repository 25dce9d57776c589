"""The main job against real vLLM: one replica, shared by all tests here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.harness.clock import ManualClock

from forebay.engine.answer import AnswerCheck
from forebay.engine.client import HttpEngine
from forebay.engine.replica import HttpReplica, list_models
from forebay.engine.retry import RetryPolicy, complete_with_retry
from forebay.errors import AnswerCut, EmptyAnswer, ModelNotFound, PromptTooLong, SettingError
from forebay.records import Message, Request, Sampling

pytestmark = pytest.mark.vllm

MODEL = "smollm2-135m-instruct"
SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["good", "bad"]},
        "words": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["mood", "words"],
    "additionalProperties": False,
}
POSTS = ["What a fight!", "The referee was blind.", "I love this town 🎉", 'She said "no"\n\tand left.']


@pytest.fixture
def replica(local_engine: Any) -> str:
    return str(local_engine[0])


def request(text: str, **changes: Any) -> Request:
    settings = {"model": MODEL, "sampling": Sampling(max_tokens=24, extra={"ignore_eos": True}), **changes}
    return Request(id="r", messages=(Message("user", text),), **settings)


async def test_streamed_answer_has_times_and_tokens(replica: str) -> None:
    assert [model.max_model_len for model in await list_models(replica)] == [512]
    engine = HttpEngine(replica)
    try:
        completion = await engine.complete(request("Say something."), timeout_s=60)
    finally:
        await engine.close()
    timing, usage = completion.timing, completion.usage
    assert (usage.completion_tokens, completion.finish_reason) == (24, "length")
    assert usage.prompt_tokens > 0
    assert timing.first_byte_s is not None
    assert timing.first_token_s is not None
    assert timing.sent_s < timing.first_byte_s <= timing.first_token_s <= timing.done_s
    assert timing.chunks_s[0] == timing.first_token_s
    assert len(timing.chunks_s) > 10
    assert completion.text


async def test_vllm_gathers_the_tokens_of_the_second_answer(replica: str) -> None:
    connection = HttpReplica(replica, clock=ManualClock())
    long = request("Tell a story.", sampling=Sampling(max_tokens=80, extra={"ignore_eos": True}))
    try:
        await connection.list_models()
        first, second = [await connection.engine.complete(long, timeout_s=600) for _ in range(2)]
    finally:
        await connection.close()
    assert (first.usage.completion_tokens, second.usage.completion_tokens) == (80, 80)
    assert second.text == first.text
    assert len(second.timing.chunks_s) <= 10 < len(first.timing.chunks_s)


async def test_vllm_rejections_have_their_class(replica: str) -> None:
    engine = HttpEngine(replica)
    try:
        with pytest.raises(PromptTooLong):
            await engine.complete(request("long " * 2000), timeout_s=60)
        with pytest.raises(ModelNotFound, match="no-such-model"):
            await engine.complete(request("x", model="no-such-model"), timeout_s=60)
    finally:
        await engine.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_answer_cut_within_json_is_requested_once(replica: str, stream: bool) -> None:
    engine = HttpEngine(replica, stream=stream)
    cut = request("How is the mood?", schema=SCHEMA, sampling=Sampling(max_tokens=3))
    try:
        outcome = await complete_with_retry(
            engine, cut, policy=RetryPolicy(), timeout_s=60, check=AnswerCheck(SCHEMA)
        )
    finally:
        await engine.close()
    assert (type(outcome.error), outcome.attempts) == (AnswerCut, 1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("chat", [True, False])
async def test_answer_of_only_stop_words_is_empty(replica: str, stream: bool, chat: bool) -> None:
    """Allows no token except the end of an answer."""
    engine = HttpEngine(replica, stream=stream)
    sampling = Sampling(max_tokens=4, extra={"allowed_token_ids": [2]})
    asked: Any = request("Say something.", sampling=sampling)
    if not chat:
        asked = Request("r", MODEL, prompt="Say something.", sampling=sampling)
    try:
        outcome = await complete_with_retry(
            engine, asked, policy=RetryPolicy(max_invalid_answers=2), timeout_s=60
        )
    finally:
        await engine.close()
    assert (type(outcome.error), outcome.attempts) == (EmptyAnswer, 2)
    assert "(finish_reason stop)" in str(outcome.error)


async def test_cancelled_request_leaves_vllm(replica: str) -> None:
    asked = HttpReplica(replica)

    async def running() -> int:
        load, _ = await asked.fetch_metrics()
        return load.running or 0

    try:
        long = request("Count.", sampling=Sampling(max_tokens=450, extra={"ignore_eos": True}))
        call = asyncio.create_task(asked.engine.complete(long, timeout_s=120))
        while not await running():
            assert not call.done(), "the answer came before it could be cancelled"
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # The test's time-out bounds this.
        while await running():
            pass
    finally:
        await asked.close()


@pytest.mark.flink
def test_pipeline_gives_valid_answers_and_reports_misfits(replica: str, pipelines: Any) -> None:
    texts = [f"{POSTS[n % len(POSTS)]} ({n})" for n in range(8)]
    pipelines.write(*({"text": text} for text in texts), {"text": "long " * 2000}, b"no JSON")
    spec = pipelines.spec(
        prompt="How is the mood of this post, and how many words has it? Answer with JSON. {{ text }}",
        output={"schema": SCHEMA},
        sampling={"max_tokens": 32},
        capacity=8,
        deadline_s=240.0,
        timeout_s=120.0,
    )
    last = pipelines.run(spec, replica)
    rows = pipelines.lines()
    assert sorted(row["fields"]["text"] for row in rows) == sorted(texts)
    for row in rows:
        assert set(row["answer"]) == {"mood", "words"}
        assert row["answer"]["mood"] in {"good", "bad"}
        assert row["usage"]["prompt_tokens"] > 0
        assert row["usage"]["completion_tokens"] > 0
    causes = {letter["input"][:7]: letter["cause"] for letter in pipelines.lines("out-dead-letters")}
    assert causes == {'{"text"': "prompt_too_long", "no JSON": "malformed_record"}
    assert (last.results, last.dead_letters) == (8, 2)


@pytest.mark.flink
def test_unserved_model_stops_the_start(replica: str, pipelines: Any) -> None:
    pipelines.write({"text": "x"})
    with pytest.raises(
        SettingError, match=f"'another' is not served: the engine at {replica} serves {MODEL}"
    ):
        pipelines.run(pipelines.spec(engine={"model": "another"}), replica)
