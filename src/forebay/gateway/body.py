"""A request's body: read within its bounds of size and time, and what of it the gateway must know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from forebay.engine.protocol import CHAT_PATH, KV_TRANSFER, PROMPT_PATH
from forebay.fleet.routing_request import message_text
from forebay.gateway.asgi import HungUp, Receive, TimeLimit, TimeOver
from forebay.gateway.refusal import Refusal, no_room, slow_body, too_large

EMBED_PATH = "/v1/embeddings"
MAX_CONTAINERS = 500_000
"""Brackets in a body: each becomes an object of some 60 bytes when it is parsed."""
MAX_NAME_CHARS = 500
MAX_COUNT = 1 << 40
"""Larger numbers are taken for this one: a product of a few stays a number that can be reckoned with."""
CHARS_PER_TOKEN = 4
ASSUMED_MODEL_LEN = 8192
"""Of a model whose replicas do not say how long a prompt with its answer may be."""
NEEDS_PROMPT = ("echo", "prompt_logprobs", "prompt_logprob_token_ids", "prompt_embeds", "use_beam_search")
"""Fields for which the replica that decodes computes the prompt itself, or makes several requests of one."""
TRANSFERS = (
    KV_TRANSFER,
    "ec_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disaggregated_params",
)
"""Fields by which an engine takes over a KV cache, or what an image was encoded to, from where they say: two
of vLLM, three of SGLang (srt/entrypoints/openai/protocol.py), one of TensorRT-LLM (serve/openai_protocol.py).
"""
WRITABLE_DEPTH = 250
"""A body that is nested deeper cannot be written anew for who prefills: orjson writes at most 254 levels."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the fleet must see it. `body` goes to the replica as it came.

    `text` is what the prefix cache sees of the prompt, near enough; `given_tokens` counts those that the
    prompt holds as numbers. `max_tokens`: the longest answer, where the client says so. `answers`: how many
    answers there will be, 0 where nothing is written.
    `transferable`: whoever decodes it may take over the KV cache of its prompt from another replica.
    `session`: what the client says belongs together (`prompt_cache_key`, or `user`).
    """

    path: str
    body: bytes
    model: str
    stream: bool
    text: str
    given_tokens: int = 0
    max_tokens: int | None = None
    answers: int = 1
    transferable: bool = False
    session: str | None = None

    @property
    def prompt_tokens(self) -> int:
        """An estimate."""
        return len(self.text) // CHARS_PER_TOKEN + self.given_tokens

    def tokens(self, max_model_len: int | None) -> int:
        """An estimate of the most that the request can cost: its prompt, and for each answer as many tokens
        as it asks for, at most the model's length, which also counts where it does not say."""
        length = max_model_len or (self.max_tokens or ASSUMED_MODEL_LEN)
        return self.prompt_tokens + self.answers * min(self.max_tokens or length, length)


class Room:
    """How many bytes of bodies are held at a time, over all requests."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Gives a function that takes so many bytes more; all go back at the end.

        It raises `Refusal` (503) where there is no room for them.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self.held + size > self._max_bytes:
                raise no_room()
            taken += size
            self.held += size

        try:
            yield take
        finally:
            self.held -= taken


async def read_body(
    headers: Mapping[bytes, bytes],
    receive: Receive,
    take: Callable[[int], None],
    *,
    max_bytes: int,
    within_s: float,
) -> bytes:
    """The whole body. Raises `Refusal` for one that is too large or too slow, `HungUp` for half a one.

    One whose length is given is refused before any of it is read. `take` is told of bytes before they are
    kept.
    """
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > max_bytes:
        raise too_large(max_bytes)
    body = bytearray()
    try:
        with TimeLimit(within_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HungUp
                part = message.get("body", b"")
                if len(body) + len(part) > max_bytes:
                    raise too_large(max_bytes)
                take(len(part))
                body += part
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeOver:
        raise slow_body(within_s) from None


def read_asked(path: str, body: bytes, *, max_depth: int) -> Asked:
    """What `body` asks for. Raises `Refusal` that names what is wrong with it.

    Only that is looked at which the gateway itself needs; the replica judges the rest.
    """
    document = _parse(body, max_depth)
    _check_transfers(document)
    model = document.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= MAX_NAME_CHARS:
        raise _wrong("model", f"expected the name of a model, found {_kind(model)}")
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _wrong("stream", f"expected true or false, found {_kind(stream)}")
    if path == CHAT_PATH:
        text, given = _messages(document.get("messages")), 0
    elif path == PROMPT_PATH:
        text, given = _prompt(document.get("prompt"), "prompt")
    else:
        text, given = _prompt(document.get("input"), "input")
    names = ("max_tokens", "max_completion_tokens") if path == CHAT_PATH else ("max_tokens",)
    longest = max(_count(document.get(name)) for name in names)
    answers = max(1, *(_count(document.get(name)) for name in ("n", "best_of")))
    answers *= _prompts(document.get("prompt"))
    session = document.get("prompt_cache_key") or document.get("user")
    return Asked(
        path=path,
        body=body,
        model=model,
        stream=bool(stream),
        text=text,
        given_tokens=given,
        max_tokens=longest or None,
        answers=0 if path == EMBED_PATH else answers,
        transferable=path != EMBED_PATH
        and answers == 1
        and _transferable(document)
        and (max_depth <= WRITABLE_DEPTH or not deeper_than(document, WRITABLE_DEPTH)),
        session=session[:MAX_NAME_CHARS] if isinstance(session, str) else None,
    )


def _parse(body: bytes, max_depth: int) -> dict[str, Any]:
    brackets = body.count(b"[") + body.count(b"{")
    if brackets > MAX_CONTAINERS:
        raise _invalid(f"the body holds more than {MAX_CONTAINERS} lists and objects")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _invalid(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _invalid(f"the body: expected a JSON object, found {_kind(document)}")
    if brackets > max_depth and deeper_than(document, max_depth):
        raise _invalid(f"the body is nested deeper than {max_depth} levels")
    return document


def _check_transfers(document: dict[str, Any]) -> None:
    """Refuse what would have a replica connect where the client says, and take what is cached there for the
    cache of the prompt."""
    arguments = document.get("vllm_xargs")
    for where, fields in (("", document), ("vllm_xargs.", arguments if isinstance(arguments, dict) else {})):
        for name in TRANSFERS:
            if fields.get(name) is not None:
                raise _wrong(f"{where}{name}", "expected none: no client says what caches are handed over")


def deeper_than(value: object, levels: int) -> bool:
    """Whether lists and objects are nested in more than `levels` levels."""
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)  # type: ignore[attr-defined]
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _messages(messages: object) -> str:
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", f"expected a list with at least one message, found {_kind(messages)}")
    text = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _wrong(f"messages[{at}]", f"expected an object, found {_kind(message)}")
        role = message.get("role")
        if not isinstance(role, str):
            raise _wrong(f"messages[{at}].role", f"expected a text, found {_kind(role)}")
        text.append(message_text(role, message.get("content")))
    return "".join(text)


def _prompt(prompt: object, param: str) -> tuple[str, int]:
    """Text and number of tokens of a prompt: a text, tokens, or a list of either."""
    if isinstance(prompt, str):
        return prompt, 0
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            return "", len(prompt)
        texts = [one for one in prompt if isinstance(one, str)]
        return "\0".join(texts), sum(len(one) for one in prompt if isinstance(one, list))
    raise _wrong(param, f"expected a text, tokens or a list of them, found {_kind(prompt)}")


def _count(value: object) -> int:
    """A number as engines take it: `9`, `9.0` and `"9"` are one."""
    if isinstance(value, float | str):
        try:
            value = int(float(value[:40] if isinstance(value, str) else value))
        except (ValueError, OverflowError):
            return 0
    return min(value, MAX_COUNT) if type(value) is int and value > 0 else 0


def _prompts(prompt: object) -> int:
    """How many prompts there are: tokens are one."""
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1


def _transferable(document: dict[str, Any]) -> bool:
    """Whether a request for one answer needs only the KV cache of its prompt, and says nothing of that."""
    asked = (document.get(name) for name in NEEDS_PROMPT)
    return all(value is None or value is False for value in asked) and KV_TRANSFER not in document


def _invalid(message: str) -> Refusal:
    return Refusal(400, "invalid_json", message)


def _wrong(param: str, message: str) -> Refusal:
    return Refusal(400, "invalid_value", f"{param}: {message}", param=param)


def _kind(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case str():
            return "a text" if value else "an empty text"
        case int() | float():
            return "a number"
        case list():
            return "a list" if value else "an empty list"
    return "an object"
