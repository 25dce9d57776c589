"""Completions without an answer, over both protocols, streamed or not."""

from __future__ import annotations

from typing import Any

import pytest

from forebay import errors
from forebay.engine.answer import AnswerCheck
from forebay.engine.client import HttpEngine
from forebay.engine.content import check_content
from forebay.engine.retry import Outcome, RetryPolicy, complete_with_retry
from forebay.records import Completion, Message, Request, Sampling, Timing, Usage
from forebay.testing.answers import REASONING, echo
from forebay.testing.engine import ScriptedEngine
from forebay.testing.replica import FakeReplica, ReplicaScript
from forebay.testing.script import Fixed

FAST = RetryPolicy(base_s=0.001, max_backoff_s=0.001)
NOW = ReplicaScript(delay=Fixed(0.0))
SCHEMA = {"type": "object", "properties": {"team": {"type": "string"}}, "required": ["team"]}
EACH = [
    ("reasoning", errors.OutOfTokens, 1, "128 reasoning tokens used up max_tokens (128)"),
    ("empty", errors.EmptyAnswer, 3, "the model stopped without content after 1 token (finish_reason stop)"),
    ("tool_calls", errors.ToolCalled, 1, "the model called the tool 'look_up' instead of answering"),
    ("refusal", errors.AnswerRefused, 1, "the model refused to answer: I cannot help with that."),
    ("content_filter", errors.ContentFiltered, 1, "a content filter of the engine stopped the answer"),
    ("abort", errors.ServerFault, 5, "the engine aborted its answer (finish_reason abort)"),
]


async def ask(
    text: str, *, stream: bool = True, chat: bool = True, schema: Any = None, **sampling: Any
) -> tuple[Outcome, int]:
    """The outcome of the request, and the number of attempts."""
    prompt: Any = {"messages": (Message("user", text),)} if chat else {"prompt": text}
    request = Request("r", "fake", sampling=Sampling(**sampling), schema=schema, **prompt)
    check = None if schema is None else AnswerCheck(schema)
    async with FakeReplica(NOW) as replica:
        engine = HttpEngine(replica.url, stream=stream)
        try:
            outcome = await complete_with_retry(engine, request, policy=FAST, timeout_s=30, check=check)
        finally:
            await engine.close()
        return outcome, replica.report().calls["r"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("fault", "error", "calls", "words"), EACH)
async def test_a_chat_without_an_answer_has_a_cause(
    fault: str, error: type[errors.EngineError], calls: int, words: str, stream: bool
) -> None:
    outcome, asked = await ask(f"hi ((fault:{fault}))", stream=stream)
    assert (type(outcome.error), outcome.completion, outcome.answer) == (error, None, None)
    assert words in str(outcome.error)
    assert (outcome.attempts, asked) == (calls, calls)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("reasoning", errors.OutOfTokens),
        ("empty", errors.EmptyAnswer),
        ("content_filter", errors.ContentFiltered),
        ("abort", errors.ServerFault),
    ],
)
async def test_a_plain_completion_without_an_answer_has_a_cause(
    fault: str, error: type[errors.EngineError], stream: bool
) -> None:
    outcome, _ = await ask(f"hi ((fault:{fault}))", stream=stream, chat=False)
    assert (type(outcome.error), outcome.completion) == (error, None)


async def test_what_may_pass_is_asked_for_again() -> None:
    for fault in ("empty", "abort"):
        outcome, asked = await ask(f"hi ((fault:{fault}x1))")
        assert (outcome.error, asked) == (None, 2)


@pytest.mark.parametrize(
    ("sampling", "calls"),
    [
        ({"temperature": 0.0}, 1),
        ({"temperature": 0.7}, 2),
        ({"temperature": 0.7, "seed": 3}, 1),
        ({"extra": {"temperature": 0.7}}, 2),
        ({"temperature": 0.7, "extra": {"temperature": 0}}, 1),
    ],
)
@pytest.mark.parametrize("fault", ["reasoning", "length"])
async def test_an_answer_that_would_be_cut_again_is_not_asked_for(
    fault: str, sampling: dict[str, Any], calls: int
) -> None:
    outcome, asked = await ask(f"hi ((fault:{fault}x1))", schema=SCHEMA, **sampling)
    assert asked == calls
    if calls == 2:
        assert isinstance(outcome.answer, dict)
    else:
        assert isinstance(outcome.error, errors.AnswerCut if fault == "length" else errors.OutOfTokens)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_text_is_a_marked_answer(stream: bool) -> None:
    outcome, _ = await ask("hi ((fault:length))", stream=stream)
    assert outcome.completion is not None
    assert outcome.answer == echo("hi ((fault:length))")[:8]
    assert outcome.completion.finish_reason == "length"


@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_before_an_answer_is_kept(stream: bool) -> None:
    outcome, _ = await ask("hi ((fault:reasons))", stream=stream)
    assert outcome.completion is not None
    assert (outcome.answer, outcome.completion.reasoning) == (echo("hi ((fault:reasons))"), REASONING)


def completion(text: str = "", reason: str | None = "stop", used: int = 0, **more: Any) -> Completion:
    return Completion(text, reason, Usage(5, used), Timing(0.0, 1.0), **more)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (completion(" \n\t"), "stopped without content after 0 tokens"),
        (completion(reason=None), "finish_reason None"),
        (
            completion(reasoning="Hm.\nWell.", used=4),
            "reasoned and then stopped without content .*: Hm. Well.",
        ),
        (completion(reason="length"), "9 tokens used up max_tokens"),
        (completion("\n\n", "length", 9), "9 tokens of white space used up max_tokens"),
        (completion(reason="length", used=5), "after 5 tokens the model's context was full"),
        (completion("a", tool=""), "called the tool ''"),
        (completion("a", "function_call"), "called the tool"),
    ],
)
def test_what_is_no_answer_is_explained(found: Completion, words: str) -> None:
    with pytest.raises(errors.EngineError, match=words):
        check_content(found, Sampling(max_tokens=9))


def test_any_other_text_is_an_answer() -> None:
    for reason in ("stop", "length", "eos_token", None):
        check_content(completion(" a ", reason), Sampling())


@pytest.mark.parametrize("fault", [fault for fault, *_ in EACH])
async def test_the_engine_without_http_gives_the_same(fault: str) -> None:
    engine = ScriptedEngine(Fixed(0.0))
    request = Request("r", "m", messages=(Message("user", f"hi ((fault:{fault}))"),))
    outcome = await complete_with_retry(engine, request, policy=FAST, timeout_s=30)
    over_http, _ = await ask(f"hi ((fault:{fault}))")
    assert (type(outcome.error), str(outcome.error)) == (type(over_http.error), str(over_http.error))
