"""Requests for more than a plain answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import orjson
import pytest

from forebay.testing.answers import AnswerParts, echo, stopped, token_texts, tokens
from forebay.testing.replica import ReplicaScript, ReplicaThread
from forebay.testing.replica.asked import read_body
from forebay.testing.replica.wire import choices_of
from forebay.testing.script import Fixed

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with ReplicaThread(ReplicaScript(models=("m",), delay=Fixed(0.0), chunks=3)) as replica:
        yield openai.OpenAI(base_url=f"{replica.url}/v1", api_key="none", max_retries=0)


def choices(**body: Any) -> tuple[AnswerParts, ...]:
    return choices_of(read_body(orjson.dumps({"model": "m", "prompt": "hello", **body}), chat=False), None)


def test_content_parts_are_one_text(client: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "Say"}, {"type": "text", "text": "hello."}]
    told = client.chat.completions.create(model="m", messages=[{"role": "user", "content": parts}])
    assert told.choices[0].message.content == echo("Say\nhello.")


def test_choices_differ_and_the_first_is_the_usual_answer() -> None:
    first, second = choices(n=2)
    assert (first.text, first.text != second.text) == (echo("hello"), True)
    of_each = choices(prompt=["hello", "you"], n=2)
    assert [parts.text for parts in of_each[:2]] == [first.text, second.text]
    assert of_each[2].text == echo("you")


@pytest.mark.parametrize(
    ("asked", "text", "reason", "stop_reason"),
    [
        ({"stop": "f4"}, "echo:aa", "stop", "f4"),
        ({"stop": ["zz", "c6", "f4"]}, "echo:aa", "stop", "f4"),
        ({"stop": "f4", "include_stop_str_in_output": True}, "echo:aaf4", "stop", "f4"),
        ({"stop": ["zz", ""]}, "echo:aaf4c61ddcc5", "stop", None),
        ({"stop": "dcc5", "max_tokens": 2}, "echo:aaf", "length", None),
    ],
)
def test_a_stop_sequence_ends_the_answer(
    asked: dict[str, Any], text: str, reason: str, stop_reason: str | None
) -> None:
    (parts,) = choices(**asked)
    assert (parts.text, parts.reason, parts.stop_reason) == (text, reason, stop_reason)


def test_of_two_stop_sequences_the_first_in_the_text_counts() -> None:
    assert stopped(AnswerParts("a b c", "length"), ("c", "b")).text == "a "


def test_a_demanded_tool_is_called_with_arguments_that_fit(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    told = client.chat.completions.create(**asked, tool_choice="required").choices[0]
    assert told.finish_reason == "tool_calls"
    assert told.message.tool_calls is not None
    assert told.message.tool_calls[0].function.arguments == '{"city":"Rome"}'  # type: ignore[union-attr]
    arguments = ""
    for chunk in client.chat.completions.create(**asked, tool_choice="required", stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.function is not None
            arguments += call.function.arguments or ""
    assert arguments == '{"city":"Rome"}'
    assert client.chat.completions.create(**asked).choices[0].message.content == echo("hi")
    short = client.chat.completions.create(**asked, tool_choice="required", max_tokens=2).choices[0]
    assert (short.message.content, short.finish_reason) == ('{"city":', "length")


def test_probabilities_are_of_the_tokens_that_are_counted(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    asked |= {"logprobs": True, "top_logprobs": 3}
    told = client.chat.completions.create(**asked)
    found = told.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert told.usage is not None
    assert [one.token for one in found.content] == token_texts(echo("hello"))
    assert told.usage.completion_tokens == tokens(echo("hello")) == len(found.content)
    assert [len(one.top_logprobs) for one in found.content] == [3] * 4
    streamed = [
        entry.token
        for chunk in client.chat.completions.create(**asked, stream=True)
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert streamed == token_texts(echo("hello"))


@pytest.mark.parametrize("part", ["refusal", "tool_calls", "reasons"])
def test_a_marker_gives_other_parts_of_an_answer(client: openai.OpenAI, part: str) -> None:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": f"((fault:{part}))"}]}
    message = client.chat.completions.create(**asked).choices[0].message.model_dump()
    deltas = [
        one.choices[0].delta.model_dump() for one in client.chat.completions.create(**asked, stream=True)
    ]
    name = "reasoning" if part == "reasons" else part
    assert message[name]
    assert any(delta.get(name) for delta in deltas)
