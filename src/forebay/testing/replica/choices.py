"""Computes the choices of an answer from the request alone."""

from __future__ import annotations

import orjson

from forebay.testing.answers import (
    CHARS_PER_TOKEN,
    AnswerParts,
    answer_to,
    echo,
    instance,
    parts_of,
    stopped,
    tokens,
)
from forebay.testing.replica.asked import Asked, Tool


def choices_of(asked: Asked, fault: str | None) -> tuple[AnswerParts, ...]:
    """`n` choices per prompt, in order. The first one is the answer to the prompt itself."""
    return tuple(
        _choice(asked, prompt if turn == 0 else f"{prompt}\0{turn}", fault)
        for prompt in asked.prompts
        for turn in range(asked.n)
    )


def _choice(asked: Asked, text: str, fault: str | None) -> AnswerParts:
    if asked.tool is not None and fault is None:
        return _call(asked.tool, text, asked.max_tokens)
    answer, reason = answer_to(text, asked.schema, max_tokens=asked.max_tokens, ignore_eos=asked.ignore_eos)
    parts = parts_of(answer, reason, fault, max_tokens=asked.max_tokens)
    return stopped(parts, asked.stop, keep=asked.keeps_stop)


def _call(tool: Tool, text: str, max_tokens: int) -> AnswerParts:
    word = echo(text)
    arguments = orjson.dumps(instance(tool.parameters, int(word[5:], 16), word)).decode()
    if tokens(arguments) > max_tokens:
        # What a parser cannot parse as a call stays text.
        return AnswerParts(arguments[: max_tokens * CHARS_PER_TOKEN], "length")
    # Like OpenAI: if the request names the tool, the finish reason is the one of a text.
    return AnswerParts("", "stop" if tool.named else "tool_calls", tool=tool.name, arguments=arguments)
