"""Response bodies of a fake replica in vLLM's format."""

from __future__ import annotations

import math
import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

import orjson
from aiohttp import web

from forebay.records import Usage
from forebay.testing.answers import (
    CHARS_PER_TOKEN,
    AnswerParts,
    answer_to,
    echo,
    instance,
    parts_of,
    stopped,
    token_texts,
    tokens,
)
from forebay.testing.replica.asked import ParsedRequest, Tool

DONE = b"data: [DONE]\n\n"
EMBED_SIZE = 8


@dataclass(frozen=True, slots=True)
class Answered:
    id: str
    choices: tuple[AnswerParts, ...]
    usage: Usage
    kv_transfer: dict[str, Any] | None = None


def events(asked: ParsedRequest, answer: Answered, chunks: int) -> Iterator[bytes]:
    """The events of a streamed answer in at most `chunks` portions, each with the next piece of
    every choice; a tool call has at least three."""
    head = _head(asked, answer, stream=True)
    streams = [_pieces(asked, index, parts, chunks) for index, parts in enumerate(answer.choices)]
    most = max(map(len, streams))
    for step in range(most):
        portion = b""
        if step == 0 and asked.chat:
            for index in range(len(streams)):
                delta = {"role": "assistant", "content": ""}
                role = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                portion += _event(asked, answer, head, role, 0)
        for pieces in streams:
            for choice, count in pieces[step] if step < len(pieces) else ():
                portion += _event(asked, answer, head, choice, count)
        if step == most - 1:
            if asked.include_usage:
                portion += head + b'[],"usage":' + orjson.dumps(usage(answer.usage)) + b"}\n\n"
            portion += DONE
        yield portion


def _event(
    asked: ParsedRequest, answer: Answered, head: bytes, choice: Mapping[str, Any], count: int
) -> bytes:
    event = head + b"[" + orjson.dumps(choice) + b"]"
    if asked.continuous_usage:
        event += b',"usage":' + orjson.dumps(_counts(answer.usage.prompt_tokens, count))
    return event + b"}\n\n"


def _pieces(
    asked: ParsedRequest, index: int, parts: AnswerParts, chunks: int
) -> list[list[tuple[dict[str, Any], int]]]:
    before = tokens(parts.reasoning) if parts.reasoning else 0
    portions: list[list[tuple[dict[str, Any], int]]] = []

    def add(text: str, end: int, *, last: bool) -> None:
        choice: dict[str, Any] = {"index": index}
        if asked.chat:
            choice["delta"] = {"content": text}
        else:
            choice["text"] = text
        choice["logprobs"] = _logprobs(asked, text, end - len(text))
        choice["finish_reason"] = parts.reason if last else None
        if last or not asked.chat:
            choice["stop_reason"] = parts.stop_reason if last else None
        portions.append([(choice, parts.tokens if last else before + end // CHARS_PER_TOKEN)])

    if parts.tool is not None and asked.chat:
        portions = [[(one, parts.tokens)] for one in _call_deltas(index, parts, chunks)]
    else:
        pieces, end = _cut(parts.text, chunks, whole_tokens=asked.logprobs is not None), 0
        for number, piece in enumerate(pieces, 1):
            end += len(piece)
            add(piece, end, last=number == len(pieces))
    for name in ("refusal", "reasoning"):
        if asked.chat and (found := getattr(parts, name)) is not None:
            other = {"index": index, "delta": {name: found}, "logprobs": None, "finish_reason": None}
            portions[0].insert(0, (other, tokens(found)))
    return portions


def _cut(text: str, chunks: int, *, whole_tokens: bool) -> list[str]:
    units: Sequence[str] = token_texts(text) if whole_tokens else text
    size = max(1, -(-len(units) // max(1, chunks)))
    return ["".join(units[at : at + size]) for at in range(0, len(units), size)] or [""]


def _call_deltas(index: int, parts: AnswerParts, chunks: int) -> Iterator[dict[str, Any]]:
    size = max(1, -(-len(parts.arguments) // max(1, chunks - 2)))
    calls: list[dict[str, Any]] = [
        {"id": "call-1", "type": "function", "index": 0, "function": {"name": parts.tool}}
    ]
    for at in range(0, len(parts.arguments), size):
        calls.append({"index": 0, "function": {"arguments": parts.arguments[at : at + size]}})
    for call in calls:
        delta = {"content": None, "tool_calls": [call]}
        yield {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
    yield {"index": index, "delta": {}, "logprobs": None, "finish_reason": parts.reason, "stop_reason": None}


def document(asked: ParsedRequest, answer: Answered) -> bytes:
    choices = [_whole(asked, index, parts) for index, parts in enumerate(answer.choices)]
    return (
        _head(asked, answer, stream=False)
        + orjson.dumps(choices)
        + b',"usage":'
        + orjson.dumps(usage(answer.usage))
        + b',"kv_transfer_params":'
        + orjson.dumps(answer.kv_transfer)
        + b"}"
    )


def _whole(asked: ParsedRequest, index: int, parts: AnswerParts) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index}
    if asked.chat:
        message: dict[str, Any] = {"role": "assistant", "content": parts.text, "refusal": parts.refusal}
        message["reasoning"] = parts.reasoning
        if parts.tool is not None:
            function = {"name": parts.tool, "arguments": parts.arguments}
            message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
        choice["message"] = message
    else:
        choice["text"] = parts.text
    choice["logprobs"] = _logprobs(asked, parts.text, 0)
    choice["finish_reason"] = parts.reason
    choice["stop_reason"] = parts.stop_reason
    return choice


def _logprobs(asked: ParsedRequest, text: str, offset: int) -> dict[str, Any] | None:
    if asked.logprobs is None:
        return None
    return chat_logprobs(text, asked.logprobs) if asked.chat else text_logprobs(text, asked.logprobs, offset)


def embeddings(body: bytes, models: Sequence[str]) -> bytes:
    """The answer to an embeddings request: `EMBED_SIZE` numbers from -1 to 1 per input.

    Raises `ValueError` with a message for the client.
    """
    document: Any = orjson.loads(body)
    if not isinstance(document, dict) or document.get("model") not in models:
        raise ValueError(f"expected an object with one of the models {', '.join(models)}")
    given = document.get("input")
    inputs = given if isinstance(given, list) and not all(isinstance(one, int) for one in given) else [given]
    packed = document.get("encoding_format") == "base64"
    data = []
    for index, one in enumerate(inputs):
        digest = sha1(orjson.dumps(one)).digest()
        vector = [(byte - 127.5) / 127.5 for byte in digest[:EMBED_SIZE]]
        value = b64encode(struct.pack(f"<{EMBED_SIZE}f", *vector)).decode() if packed else vector
        data.append({"object": "embedding", "index": index, "embedding": value})
    count = sum(tokens(one) if isinstance(one, str) else 1 for one in inputs)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return orjson.dumps({"object": "list", "model": document["model"], "data": data, "usage": usage})


def error_body(status: int, message: str, kind: str) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}})


def too_long(asked: ParsedRequest, max_model_len: int) -> str:
    n = asked.prompt_tokens
    return (
        f"This model's maximum context length is {max_model_len} tokens. However, you requested"
        f" {asked.max_tokens} output tokens and your prompt contains at least {n} input tokens, for a total"
        f" of at least {n + asked.max_tokens} tokens. Please reduce the length of the input prompt or the"
        " number of requested output tokens."
    )


def usage(found: Usage) -> dict[str, Any]:
    details = {"cached_tokens": found.cached_tokens} if found.cached_tokens else None
    return {**_counts(found.prompt_tokens, found.completion_tokens), "prompt_tokens_details": details}


def _counts(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _head(asked: ParsedRequest, answer: Answered, *, stream: bool) -> bytes:
    name = (
        ("chat.completion.chunk" if stream else "chat.completion") if asked.chat else "text_completion"
    ).encode()
    kind = b"chatcmpl-" if asked.chat else b"cmpl-"
    start = b'data: {"id":' if stream else b'{"id":'
    id = orjson.dumps(kind.decode() + answer.id)
    return b'%b%b,"object":"%b","created":0,"model":%b,"choices":' % (
        start,
        id,
        name,
        orjson.dumps(asked.model),
    )


TAKEN = math.log(0.5)
"""Log probability of the chosen token: one half."""


def chat_logprobs(text: str, top: int) -> dict[str, Any]:
    content = []
    for token in token_texts(text) if text else ():
        likeliest = [_entry(one, value) for one, value in _likeliest(token, top).items()]
        content.append({**_entry(token, TAKEN), "top_logprobs": likeliest})
    return {"content": content}


def text_logprobs(text: str, top: int, offset: int) -> dict[str, Any]:
    """For a completion's text that starts `offset` characters into the answer."""
    found = token_texts(text) if text else []
    offsets = []
    for token in found:
        offsets.append(offset)
        offset += len(token)
    return {
        "text_offset": offsets,
        "token_logprobs": [TAKEN] * len(found),
        "tokens": found,
        "top_logprobs": [_likeliest(token, max(1, top)) for token in found],
    }


def _likeliest(token: str, top: int) -> dict[str, float]:
    others = {f"{token}{number}": TAKEN * (number + 1) for number in range(1, top)}
    return {token: TAKEN, **others} if top else {}


def _entry(token: str, value: float) -> dict[str, Any]:
    return {"token": token, "logprob": value, "bytes": list(token.encode())}


EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


def json_response(body: bytes, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def error_response(
    status: int, message: str, kind: str, headers: dict[str, str] | None = None
) -> web.Response:
    return json_response(error_body(status, message, kind), status=status, headers=headers)


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
    begun = next(iter(events(asked, answer, 2))) if asked.stream else document(asked, answer)[:40]
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
            body = error_body(500, "scripted error in mid-stream", "InternalServerError")
            await response.write(begun + b"data: " + body + b"\n\n" + DONE if asked.stream else body)
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
