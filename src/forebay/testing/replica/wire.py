"""The bytes that a fake replica answers with, in vLLM's shapes. Nothing here waits or sends."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

import orjson

from forebay.engine.protocol import KV_TRANSFER
from forebay.records import Usage
from forebay.testing.answers import AnswerParts, tokens

DONE = b"data: [DONE]\n\n"
EMBED_SIZE = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request's body asked for. `prompt_tokens`: of `text`, or as many as were given as ids."""

    chat: bool
    model: str
    text: str
    prompt_tokens: int
    max_tokens: int
    stream: bool
    include_usage: bool
    ignore_eos: bool
    schema: dict[str, Any] | None
    kv_transfer: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """A finished answer, before it becomes bytes."""

    id: str
    parts: AnswerParts
    usage: Usage
    kv_transfer: dict[str, Any] | None = None


def read_body(body: bytes, *, chat: bool) -> Asked:
    """The request in `body`. Raises `ValueError`, with words for the client, where it is none."""
    document: Any = orjson.loads(body)
    try:
        model = document["model"]
        text = (
            "\n".join(message["content"] for message in document["messages"]) if chat else document["prompt"]
        )
        ids = len(text) if isinstance(text, list) and all(type(one) is int for one in text) else None
        if isinstance(text, list):
            text = orjson.dumps(text).decode()  # Tokens, or several prompts: one text here.
        elif not isinstance(text, str):
            raise TypeError("the prompt is neither a text nor a list")
        form = document.get("response_format") or {}
        return Asked(
            chat=chat,
            model=model,
            text=text,
            prompt_tokens=ids or tokens(text),
            max_tokens=int(document.get("max_tokens") or 16),
            stream=bool(document.get("stream")),
            include_usage=bool((document.get("stream_options") or {}).get("include_usage")),
            ignore_eos=bool(document.get("ignore_eos")),
            schema=form["json_schema"]["schema"] if form.get("type") == "json_schema" else None,
            kv_transfer=document.get(KV_TRANSFER),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def events(asked: Asked, answer: Answered, chunks: int) -> Iterator[bytes]:
    """The events of a streamed answer: role and first content, further contents, usage and the end."""
    text, other = answer.parts.text, _other_parts(answer.parts, stream=True) if asked.chat else {}
    size = max(1, -(-len(text) // max(1, chunks)))
    pieces = [text[i : i + size] for i in range(0, len(text), size)] or [""]
    head = _head(asked, answer, stream=True)
    for i, piece in enumerate(pieces):
        last = i == len(pieces) - 1
        reason = b'"' + answer.parts.reason.encode() + b'"' if last else b"null"
        event = head + _content(asked, piece) + b',"finish_reason":' + reason + b"}]}\n\n"
        if i == 0 and asked.chat:
            begin, end = head + b'[{"index":0,"delta":', b',"logprobs":null,"finish_reason":null}]}\n\n'
            if other:
                event = begin + orjson.dumps(other) + end + event
            event = begin + b'{"role":"assistant","content":""}' + end + event
        if last:
            if asked.include_usage:
                event += head + b'[],"usage":' + orjson.dumps(_usage(answer.usage)) + b"}\n\n"
            event += DONE
        yield event


def document(asked: Asked, answer: Answered) -> bytes:
    """The body of an answer that is not streamed."""
    parts = answer.parts
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": parts.reason}
    if asked.chat:
        message = {"role": "assistant", "content": parts.text, "tool_calls": []}
        choice["message"] = message | _other_parts(parts, stream=False)
    else:
        choice["text"] = parts.text
    return (
        _head(asked, answer, stream=False)
        + orjson.dumps([choice])
        + b',"usage":'
        + orjson.dumps(_usage(answer.usage))
        + b',"kv_transfer_params":'
        + orjson.dumps(answer.kv_transfer)
        + b"}"
    )


def _other_parts(parts: AnswerParts, *, stream: bool) -> dict[str, Any]:
    """What a chat's message or delta holds besides its content."""
    found: dict[str, Any] = {}
    if parts.reasoning is not None:
        found["reasoning"] = parts.reasoning
    if parts.refusal is not None:
        found["refusal"] = parts.refusal
    if parts.tool is not None:
        call = {"id": "call-1", "type": "function", "function": {"name": parts.tool, "arguments": "{}"}}
        found["tool_calls"] = [{"index": 0, **call} if stream else call]
    return found


def embeddings(body: bytes, models: Sequence[str]) -> bytes:
    """The answer to an embeddings request: for each input `EMBED_SIZE` numbers from -1 to 1.

    Raises `ValueError`, with words for the client, where it is none.
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


def too_long(asked: Asked, max_model_len: int) -> str:
    """vLLM's words for a prompt that exceeds the context."""
    n = asked.prompt_tokens
    return (
        f"This model's maximum context length is {max_model_len} tokens. However, you requested"
        f" {asked.max_tokens} output tokens and your prompt contains at least {n} input tokens, for a total"
        f" of at least {n + asked.max_tokens} tokens. Please reduce the length of the input prompt or the"
        " number of requested output tokens."
    )


def _head(asked: Asked, answer: Answered, *, stream: bool) -> bytes:
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


def _content(asked: Asked, piece: str) -> bytes:
    text = orjson.dumps(piece)
    if asked.chat:
        return b'[{"index":0,"delta":{"content":' + text + b'},"logprobs":null'
    return b'[{"index":0,"text":' + text + b',"logprobs":null'


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens} if usage.cached_tokens else None,
    }
