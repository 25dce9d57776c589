"""Parses request bodies for a fake replica, and refuses what vLLM refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from forebay.engine.protocol import KV_TRANSFER
from forebay.testing.answers import tokens

PROMPT_MAX_TOKENS = 16
"""Default of `/v1/completions`; a chat answer may fill the context."""
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MEDIA = ("image_url", "image_embeds", "input_audio", "audio_url", "video_url", "file")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the answer must call."""

    name: str
    parameters: Mapping[str, Any]
    named: bool


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A parsed request. `text`: all prompts joined. `n`: answers per prompt. `keeps_stop`: stop
    sequences are part of the answer. `logprobs`: top tokens per position."""

    chat: bool
    model: str
    text: str
    prompts: tuple[str, ...]
    prompt_tokens: int
    max_tokens: int
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    ignore_eos: bool = False
    schema: dict[str, Any] | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    keeps_stop: bool = False
    logprobs: int | None = None
    tool: Tool | None = None
    kv_transfer: dict[str, Any] | None = None


def read_body(body: bytes, *, chat: bool, max_model_len: int = 32_768) -> ParsedRequest:
    """Parse `body`. Raises `ValueError`, with a message for the client, for what vLLM refuses."""
    document: Any = orjson.loads(body)
    try:
        prompts, prompt_tokens = _conversation(document) if chat else _prompts(document["prompt"])
        form = document.get("response_format") or {}
        options = document.get("stream_options") or {}
        stream = bool(document.get("stream"))
        if options and not stream:
            raise ValueError("Stream options can only be defined when `stream=True`.")
        rest = max(1, max_model_len - prompt_tokens) if chat else PROMPT_MAX_TOKENS
        max_tokens = _max_tokens(document, rest, chat=chat)
        return ParsedRequest(
            chat=chat,
            model=document["model"],
            text="\n".join(prompts),
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            stream=stream,
            include_usage=bool(options.get("include_usage")),
            continuous_usage=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
            ignore_eos=bool(document.get("ignore_eos")),
            schema=form["json_schema"]["schema"] if form.get("type") == "json_schema" else None,
            n=_choices(document),
            stop=_stop(document.get("stop")),
            keeps_stop=bool(document.get("include_stop_str_in_output")),
            logprobs=_logprobs(document, chat=chat),
            tool=_tool(document) if chat else None,
            kv_transfer=document.get(KV_TRANSFER),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _conversation(document: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    messages: Sequence[Mapping[str, Any]] = document["messages"]
    if not messages:
        raise ValueError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    text = "\n".join(_content(message, document["model"]) for message in messages)
    return (text,), tokens(text)


def _content(message: Mapping[str, Any], model: str) -> str:
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("content: expected a string or a list of parts")
    return "\n".join(_part(part, model) for part in content)


def _part(part: Any, model: str) -> str:
    if isinstance(part, Mapping) and part.get("type") in MEDIA:
        raise ValueError(f"{model} is not a multimodal model")
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise ValueError('content: expected parts such as {"type": "text", "text": "Hello"}')


def _prompts(given: Any) -> tuple[tuple[str, ...], int]:
    several = isinstance(given, list) and not _are_ids(given)
    prompts = given if several else [given]
    if not prompts:
        raise ValueError("You must pass at least one prompt")
    if not all(isinstance(one, str) or _are_ids(one) for one in prompts):
        raise ValueError("prompt: expected texts or lists of token ids")
    if not all(prompts):
        raise ValueError("Either prompt or prompt_embeds must be provided and non-empty.")
    texts = tuple(one if isinstance(one, str) else orjson.dumps(one).decode() for one in prompts)
    return texts, sum(tokens(one) if isinstance(one, str) else len(one) for one in prompts)


def _are_ids(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(one) is int for one in given)


def _max_tokens(document: Mapping[str, Any], rest: int, *, chat: bool) -> int:
    asked = document.get("max_completion_tokens") if chat else None
    asked = document.get("max_tokens") if asked is None else asked
    found = rest if asked is None else int(asked)
    if found < 1:
        raise ValueError(f"max_tokens must be at least 1, got {found}.")
    least = document.get("min_tokens") or 0
    if least > found:
        raise ValueError(f"min_tokens must be less than or equal to max_tokens={found}, got {least}.")
    return found


def _choices(document: Mapping[str, Any]) -> int:
    asked = document.get("n")
    n = 1 if asked is None else int(asked)
    if not 1 <= n <= MAX_CHOICES:
        raise ValueError(f"n must be at least 1, got {n}." if n < 1 else f"n must be at most {MAX_CHOICES}.")
    if n > 1 and document.get("temperature") == 0:
        raise ValueError(f"n must be 1 when using greedy sampling, got {n}.")
    return n


def _stop(given: Any) -> tuple[str, ...]:
    found = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError("stop: expected a string or a list of strings")
    return tuple(found)


def _logprobs(document: Mapping[str, Any], *, chat: bool) -> int | None:
    asked = document.get("logprobs")
    top = document.get("top_logprobs") if chat else asked
    if chat and not asked:
        if top:
            raise ValueError("when using `top_logprobs`, `logprobs` must be set to true.")
        return None
    if top is not None and not 0 <= int(top) <= MAX_TOP_LOGPROBS:
        raise ValueError(
            f"Requested sample logprobs of {top}, which is greater than max allowed: {MAX_TOP_LOGPROBS}"
        )
    return (0 if chat else None) if top is None else int(top)


def _tool(document: Mapping[str, Any]) -> Tool | None:
    tools, choice = document.get("tools"), document.get("tool_choice")
    if tools is not None and not tools:
        raise ValueError("`tools` must not be an empty array. Provide at least one tool or omit the field.")
    if tools is None:
        if choice not in (None, "none"):
            raise ValueError("When using `tool_choice`, `tools` must be set.")
        return None
    functions = [one["function"] for one in tools]
    if choice in (None, "none", "auto"):
        return None
    if isinstance(choice, Mapping):
        functions = [one for one in functions if one["name"] == choice["function"]["name"]]
        if not functions:
            raise ValueError("The tool in `tool_choice` does not match any of the specified `tools`")
    elif choice != "required":
        raise ValueError(
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are '
            "supported."
        )
    parameters = functions[0].get("parameters") or {"type": "object"}
    return Tool(functions[0]["name"], parameters, named=isinstance(choice, Mapping))
