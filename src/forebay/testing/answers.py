"""Answers of scripted engines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha1
from typing import Any

import orjson
from pydantic import BaseModel

from forebay.apps.summaries.prompt import MAX_STATEMENT_CHARS, STATEMENT_OF_TOKENS
from forebay.apps.summaries.values import MAX_SOURCES
from forebay.apps.summaries.values import tokens as prompt_tokens
from forebay.records import JSON, Request

CHARS_PER_TOKEN = 4
BROKEN_ANSWER = '{"broken": '
"""The answer of the fault `schema`: text that violates every schema."""


Answers = Mapping[str, Any] | Callable[[str], Any]
"""Answers chosen by a test: by words in the prompt, or as a function of it."""


def request_text(request: Request) -> str:
    return request.prompt if request.prompt is not None else "\n".join(m.content for m in request.messages)


def echo(text: str) -> str:
    """`echo:` and the first 12 hexadecimal digits of the prompt's SHA-1."""
    return "echo:" + sha1(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def answer_to(
    text: str, schema: Mapping[str, JSON] | None, *, max_tokens: int, ignore_eos: bool = False
) -> tuple[str, str]:
    """The answer to a prompt and its finish reason: `echo(text)`; with a schema, compact JSON that
    satisfies it; with a summary's schema, a scripted summary. `ignore_eos` pads text to
    `max_tokens`."""
    if schema is None:
        answer = echo(text)
        if ignore_eos:
            return answer.ljust(max_tokens * CHARS_PER_TOKEN, ".")[: max_tokens * CHARS_PER_TOKEN], "length"
    elif is_summary_form(schema):
        answer = summarise(text, schema)
    else:
        answer = orjson.dumps(instance(schema, int(echo(text)[5:], 16), echo(text))).decode()
    if tokens(answer) > max_tokens:
        return answer[: max_tokens * CHARS_PER_TOKEN], "length"
    return answer, "stop"


def chosen_answer(answers: Answers, text: str, schema: Mapping[str, JSON] | None) -> str | None:
    if isinstance(answers, Mapping):
        answer = next((answer for words, answer in answers.items() if words in text), None)
    else:
        answer = answers(text)
    if answer is None:
        return None
    if isinstance(answer, BaseModel):
        return answer.model_dump_json(by_alias=True)
    if schema is None and isinstance(answer, str):
        return answer
    return orjson.dumps(answer).decode()


REASONING = "First I think about it. "
TOOL = "look_up"
REFUSAL = "I cannot help with that."


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """The parts of a chat message and its finish reason.

    `arguments`: JSON for the call of `tool`; `stop_reason`: the stop sequence that ended it.
    """

    text: str
    reason: str
    reasoning: str | None = None
    tool: str | None = None
    refusal: str | None = None
    arguments: str = "{}"
    stop_reason: str | None = None

    @property
    def tokens(self) -> int:
        arguments = self.arguments if self.tool else ""
        return tokens(self.text + (self.reasoning or "") + (self.refusal or "") + arguments)


def parts_of(text: str, reason: str, fault: str | None, *, max_tokens: int) -> AnswerParts:
    """`text` changed by one of `forebay.testing.script.ANSWERS`; other faults change nothing."""
    half = text[: len(text) // 2]
    match fault:
        case "schema":
            return AnswerParts(BROKEN_ANSWER, reason)
        case "length":
            return AnswerParts(half, "length")
        case "content_filter" | "abort":
            return AnswerParts(half, fault)
        case "empty":
            return AnswerParts("", "stop")
        case "reasons":
            return AnswerParts(text, reason, reasoning=REASONING)
        case "reasoning":
            size = max_tokens * CHARS_PER_TOKEN
            return AnswerParts("", "length", reasoning=(REASONING * (size // len(REASONING) + 1))[:size])
        case "tool_calls":
            return AnswerParts("", "tool_calls", tool=TOOL)
        case "refusal":
            return AnswerParts("", "stop", refusal=REFUSAL)
    return AnswerParts(text, reason)


def stopped(parts: AnswerParts, stop: Sequence[str], *, keep: bool = False) -> AnswerParts:
    found = [(at, one) for one in stop if one and (at := parts.text.find(one)) >= 0]
    if not found:
        return parts
    at, one = min(found)
    return replace(parts, text=parts.text[: at + len(one) * keep], reason="stop", stop_reason=one)


def instance(schema: Any, pick: int, word: str) -> JSON:
    """A value that satisfies `schema`. Supports const, enum, types, common bounds, `items`,
    `properties`, first branches of `anyOf` and `oneOf`, and local `$ref`s."""
    return _instance(schema, pick, word, schema, 0)


def _instance(schema: Any, pick: int, word: str, root: Any, depth: int) -> JSON:
    if not isinstance(schema, Mapping) or depth > 20:
        return None
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].lstrip("#/").split("/"):
            target = target[part] if part else target
        return _instance(target, pick, word, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][pick % len(schema["enum"])]
    for branches in ("anyOf", "oneOf"):
        if schema.get(branches):
            return _instance(schema[branches][0], pick, word, root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "null")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            return {
                name: _instance(sub, pick // 7 + i, word, root, depth + 1)
                for i, (name, sub) in enumerate(schema.get("properties", {}).items())
            }
        case "array":
            n = max(schema.get("minItems", 0), min(1, schema.get("maxItems", 1)))
            return [
                _instance(schema.get("items", {}), pick // 7 + i, word, root, depth + 1) for i in range(n)
            ]
        case "string":
            return _string(schema, word)
        case "integer":
            return int(_number(schema, pick, whole=True))
        case "number":
            return _number(schema, pick, whole=False)
        case "boolean":
            return pick % 2 == 0
    return None


def _string(schema: Mapping[str, Any], word: str) -> str:
    shortest = schema.get("minLength", 0)
    text = word * (shortest // len(word) + 1)
    return text[: max(shortest, min(len(word), schema.get("maxLength", len(word))))]


def _number(schema: Mapping[str, Any], pick: int, *, whole: bool) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf))
    high = schema.get("maximum", schema.get("exclusiveMaximum", math.inf))
    if whole:
        low = math.floor(low) + 1 if "exclusiveMinimum" in schema else low
        high = math.ceil(high) - 1 if "exclusiveMaximum" in schema else high
        low = math.ceil(low) if math.isfinite(low) else (0 if high >= 0 else math.floor(high) - 9)
        span = 10 if math.isinf(high) else min(10, math.floor(high) - low + 1)
        return low + pick % max(1, span)
    if math.isfinite(low) and math.isfinite(high):
        return float(low + (high - low) * (0.25 + 0.5 * (pick % 100) / 100))
    if math.isfinite(low):
        return float(low + 1 + pick % 10)
    return float(high - 1 - pick % 10) if math.isfinite(high) else float(pick % 10)


def tokens(text: str) -> int:
    """A fake tokenizer: one token per four characters, at least one."""
    return max(1, len(text) // CHARS_PER_TOKEN)


def token_texts(text: str) -> list[str]:
    last = CHARS_PER_TOKEN * (tokens(text) - 1)
    return [text[at : at + CHARS_PER_TOKEN] for at in range(0, last, CHARS_PER_TOKEN)] + [text[last:]]


EVENTS_A_STATEMENT = 8
WORDS = 18
_LINE = re.compile(r"^(\d+)\. (.*)$")
_LIMIT = re.compile(r"the whole has at most (\d+) tokens")


def is_summary_form(schema: Mapping[str, JSON]) -> bool:
    statement = schema.get("properties", {}).get("statements", {}).get("items", {})
    return "sources" in statement.get("properties", {})


def summarise(text: str, schema: Mapping[str, Any]) -> str:
    """The JSON answer to a summary prompt: sentences taken from its messages.

    As long as a model's: one statement per `EVENTS_A_STATEMENT` messages, of about `WORDS` words.
    """
    earlier, messages = _part(text, "earlier"), _part(text, "messages")
    most = schema["properties"]["statements"]["maxItems"]
    groups = min(most, -(-len(messages) // EVENTS_A_STATEMENT)) if messages else 0
    statements = []
    for n in range(groups):
        group = messages[n * len(messages) // groups : (n + 1) * len(messages) // groups]
        words = " ".join(sentence for _, sentence in group).split()
        step = max(1, len(words) // WORDS)
        sentence = " ".join(words[::step][:WORDS])
        if len(sentence) >= MAX_STATEMENT_CHARS:
            sentence = sentence[: MAX_STATEMENT_CHARS - 1] + "…"
        statements.append(
            {"text": sentence or "nothing", "sources": [number for number, _ in group][:MAX_SOURCES]}
        )
    answer: dict[str, JSON] = {"statements": statements}
    if "keep" in schema["properties"]:
        found = _LIMIT.search(text)
        room = (int(found[1]) if found else 0) - STATEMENT_OF_TOKENS * groups
        keep = []
        # Keep the longest, as a stand-in for the most important.
        for number, sentence in sorted(earlier, key=lambda each: (-len(each[1]), each[0])):
            cost = prompt_tokens(sentence) + 6
            if cost <= room:
                room -= cost
                keep.append(number)
        answer = {"keep": sorted(keep), **answer}
    return orjson.dumps(answer).decode()


def _part(text: str, mark: str) -> list[tuple[int, str]]:
    _, begun, rest = text.rpartition(f"\n<{mark}>\n")
    part = rest.partition(f"\n</{mark}>")[0] if begun else ""
    found = (_LINE.match(line) for line in part.splitlines())
    return [(int(line[1]), line[2]) for line in found if line]
