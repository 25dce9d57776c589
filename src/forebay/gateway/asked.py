"""What the gateway must know of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.engine.protocol import KV_TRANSFER
from forebay.gateway.body import check_transfers, deeper_than, kind_of, parse_object
from forebay.gateway.form import form_fields
from forebay.gateway.refusal import invalid_value
from forebay.gateway.routes import ROUTES, TRANSFERABLE, Route

MAX_NAME_CHARS = 500
MAX_FIELD_BYTES = 65_536
"""Longer form fields are not read."""
MAX_COUNT = 1 << 40
"""Larger numbers are reduced to this one: products stay finite."""
CHARS_PER_TOKEN = 4
ASSUMED_MODEL_LEN = 8192
"""For models whose replicas do not report a context length."""
NEEDS_PROMPT = ("echo", "prompt_logprobs", "prompt_logprob_token_ids", "prompt_embeds", "use_beam_search")
"""Fields for which the decoding replica computes the prompt itself, or makes several requests."""
WRITABLE_DEPTH = 250
"""Deeper bodies cannot be rewritten for the prefill: orjson writes at most 254 levels."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the fleet must know of a request.

    Attributes:
        path: Its path at the replica.
        body: What the replica gets.
        model: The model's name, or empty.
        stream: Whether the answer is streamed.
        text: The prompt, about as the prefix cache sees it.
        given_tokens: The prompt's tokens given as numbers.
        max_tokens: The client's limit for an answer.
        answers: Number of answers to generate, maybe 0.
        transferable: Whether its replica may take over the prompt's KV cache.
        session: The client's own grouping: `prompt_cache_key`, `user` or `metadata.user_id`.
        costs: Whether it counts in limits and estimates.
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
    costs: bool = True

    @property
    def prompt_tokens(self) -> int:
        return len(self.text) // CHARS_PER_TOKEN + self.given_tokens

    def tokens(self, max_model_len: int | None) -> int:
        """Highest cost: the prompt, and for each answer `max_tokens`, at most (and by default) the model's
        length.
        """
        length = max_model_len or (self.max_tokens or ASSUMED_MODEL_LEN)
        return self.prompt_tokens + self.answers * min(self.max_tokens or length, length)


def read_asked(path: str, body: bytes, *, max_depth: int, content_type: bytes = b"") -> Asked:
    """Parse what the gateway itself needs; the replica checks the rest. Raises `Refusal`."""
    route = ROUTES[path]
    document = _form(content_type, body, max_depth) if route.form else parse_object(body, max_depth=max_depth)
    model = document.get("model")
    if model is None and not route.needs_model:
        model = ""
    elif not isinstance(model, str) or not 0 < len(model) <= MAX_NAME_CHARS:
        raise invalid_value("model", f"expected the name of a model, found {kind_of(model)}")
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise invalid_value("stream", f"expected true or false, found {kind_of(stream)}")
    text, given = route.prompt(document)
    answers = _answers(route, document)
    longest = max((_count(document.get(name)) for name in route.max_tokens), default=0)
    return Asked(
        path=route.at_replica,
        body=body,
        model=model,
        stream=bool(stream),
        text=text,
        given_tokens=given,
        max_tokens=longest or None,
        answers=answers,
        transferable=path in TRANSFERABLE
        and answers == 1
        and _transferable(document)
        and (max_depth <= WRITABLE_DEPTH or not deeper_than(document, WRITABLE_DEPTH)),
        session=_session(document),
        costs=route.costs,
    )


def _form(content_type: bytes, body: bytes, max_depth: int) -> Mapping[str, Any]:
    document: dict[str, Any] = {}
    for field in form_fields(content_type, body):
        if field.is_file or field.end - field.begin > MAX_FIELD_BYTES:
            continue
        if field.name == "model" and "model" in document:
            raise invalid_value("model", "expected the name of one model, found the field twice")
        document[field.name] = body[field.begin : field.end].decode("utf-8", "replace")
    if "stream" in document:
        # As pydantic reads it in vLLM; the replica rejects other values.
        document["stream"] = document["stream"].strip().lower() in ("true", "1", "on", "t", "y", "yes")
    arguments = document.get("vllm_xargs", "")
    if arguments.lstrip().startswith("{"):
        document["vllm_xargs"] = parse_object(arguments.encode(), max_depth=max_depth)
    check_transfers(document)
    return document


def _answers(route: Route, document: Mapping[str, Any]) -> int:
    if not route.writes:
        return 0
    answers = max(1, *(_count(document.get(name)) for name in ("n", "best_of")))
    return answers * _prompts(document.get("prompt"))


def _session(document: Mapping[str, Any]) -> str | None:
    metadata = document.get("metadata")
    session = (
        document.get("prompt_cache_key")
        or document.get("user")
        or (metadata.get("user_id") if isinstance(metadata, dict) else None)
    )
    return session[:MAX_NAME_CHARS] if isinstance(session, str) else None


def _count(value: object) -> int:
    if isinstance(value, float | str):
        try:
            value = int(float(value[:40] if isinstance(value, str) else value))
        except (ValueError, OverflowError):
            return 0
    return min(value, MAX_COUNT) if type(value) is int and value > 0 else 0


def _prompts(prompt: object) -> int:
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1


def _transferable(document: Mapping[str, Any]) -> bool:
    """Whether one answer needs only the prompt's KV cache."""
    asked = (document.get(name) for name in NEEDS_PROMPT)
    return all(value is None or value is False for value in asked) and KV_TRANSFER not in document
