"""HTTP responses of a fake replica, including answers that break off."""

from __future__ import annotations

import math

import orjson
from aiohttp import web

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
from forebay.testing.replica import wire
from forebay.testing.replica.asked import ParsedRequest, Tool
from forebay.testing.replica.wire import Answered

EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


def json_response(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def error_response(
    status: int, message: str, kind: str, headers: dict[str, str] | None = None
) -> web.Response:
    return json_response(wire.error_body(status, message, kind), status=status, headers=headers)


async def read_number(request: web.BaseRequest) -> float | None:
    try:
        found = float(await request.text())
    except ValueError:
        return None
    return found if 0 <= found < math.inf else None


async def break_off(
    request: web.BaseRequest, asked: ParsedRequest, answer: Answered, fault: str
) -> web.StreamResponse:
    response = web.StreamResponse(headers=EVENT_STREAM if asked.stream else {})
    await response.prepare(request)
    begun = next(iter(wire.events(asked, answer, 2))) if asked.stream else wire.document(asked, answer)[:40]
    match fault:
        case "cut":
            await response.write(begun)
            hang_up(request)
        case "garbage":
            await response.write(begun + b"data: {not json\n\n" if asked.stream else begun)
        case "binary":
            await response.write(bytes(range(256)) * 8)
        case "huge":
            while True:
                await response.write(begun * 200)
        case "error":
            body = wire.error_body(500, "scripted error in mid-stream", "InternalServerError")
            await response.write(begun + b"data: " + body + b"\n\n" + wire.DONE if asked.stream else body)
    return response


def hang_up(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.close()


def choices_of(asked: ParsedRequest, fault: str | None) -> tuple[AnswerParts, ...]:
    """`n` choices per prompt, in order."""
    return tuple(
        _choice(asked, prompt if turn == 0 else f"{prompt}\0{turn}", fault)
        for prompt in asked.prompts
        for turn in range(asked.n)
    )


def _choice(asked: ParsedRequest, text: str, fault: str | None) -> AnswerParts:
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
