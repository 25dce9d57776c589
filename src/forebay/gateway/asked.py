"""What the gateway must know of a request."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from forebay.engine.protocol import CHAT_PATH, KV_TRANSFER, PROMPT_PATH
from forebay.gateway.body import check_transfers, kind_of, parse_object
from forebay.gateway.fields import MEDIA_TOKENS, check_fields, count_of, prompt_bytes, without_nulls
from forebay.gateway.form import form_fields
from forebay.gateway.refusal import invalid_value
from forebay.gateway.routes import RESPONSES_PATH, ROUTES, TRANSFERABLE, Route

MAX_NAME_CHARS = 500
MAX_FIELD_BYTES = 65_536
BYTES_PER_TOKEN = 4
ASSUMED_MODEL_LEN = 8192
"""For models whose replicas do not report a context length."""
NEEDS_PROMPT = ("echo", "prompt_logprobs", "prompt_logprob_token_ids", "prompt_embeds", "use_beam_search")
"""Fields for which the decoding replica computes the prompt itself, or makes several requests."""
SALTED = frozenset((CHAT_PATH, PROMPT_PATH, RESPONSES_PATH))
"""Calls for which vLLM and SGLang divide the prefix cache by `cache_salt`."""
EXACT = 1 << 53
"""All JSON parsers read whole numbers up to this one alike."""
MAX_ANSWERS = 1 << 40
WHOLE = re.compile(r"0|[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the fleet must know of a request.

    Attributes:
        body: What the replica gets.
        model: The model's name, or empty.
        text: The prompt, about as the prefix cache sees it.
        given_tokens: The prompt's tokens given as numbers.
        prompt_bytes: Size of everything else that may become prompt, tools and schemas included.
        media: Number of images, recordings and films.
        max_tokens: The client's limit for an answer.
        answers: Number of answers to generate, maybe 0.
        transferable: Whether its replica may take over the prompt's KV cache.
        session: The client's own grouping: `prompt_cache_key`, `user` or `metadata.user_id`.
        costs: Whether it counts in limits and estimates.
        hides_usage: Whether only the gateway asked for the token count at the end of the stream.
        model_begin, model_end: Where the model's name is in the body, in JSON with its quotes.
    """

    path: str
    body: bytes
    model: str
    stream: bool
    text: str
    given_tokens: int = 0
    prompt_bytes: int = 0
    media: int = 0
    max_tokens: int | None = None
    answers: int = 1
    transferable: bool = False
    session: str | None = None
    costs: bool = True
    hides_usage: bool = False
    model_begin: int = 0
    model_end: int = 0

    @property
    def prompt_tokens(self) -> int:
        """An estimate, rather too high than too low."""
        return self.prompt_bytes // BYTES_PER_TOKEN + self.given_tokens + self.media * MEDIA_TOKENS

    def tokens(self, max_model_len: int | None) -> int:
        """Highest cost: the prompt, and for each answer `max_tokens`, at most (and by default) the model's
        length.
        """
        if not self.costs:
            return 0
        length = max_model_len or (self.max_tokens or ASSUMED_MODEL_LEN)
        return self.prompt_tokens + self.answers * min(self.max_tokens or length, length)


def read_asked(
    path: str,
    body: bytes,
    *,
    max_depth: int,
    content_type: bytes = b"",
    fields: Collection[str] = (),
    salt: str | None = None,
) -> Asked:
    """Parse what the gateway itself needs; the replica checks the rest. Raises `Refusal`.

    JSON is written again for the replica, so that it cannot be read in a second way. `fields`: those that
    clients may send besides the known ones. `salt`: of the client's prefix cache, divided further by a
    client's own.
    """
    route = ROUTES[path]
    begin = end = 0
    if route.form:
        document, begin, end = _form(content_type, body, max_depth)
    else:
        document = parse_object(body, max_depth=max_depth)
    check_fields(document, fields)
    model = document.get("model")
    if model is None and not route.needs_model:
        model = ""
    elif not isinstance(model, str) or not 0 < len(model) <= MAX_NAME_CHARS:
        raise invalid_value("model", f"expected the name of a model, found {kind_of(model)}")
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise invalid_value("stream", f"expected true or false, found {kind_of(stream)}")
    text, given = route.prompt(document)
    hides_usage = bool(stream) and path in (CHAT_PATH, PROMPT_PATH) and _add_usage(document)
    if salt is not None and path in SALTED:
        salt = document["cache_salt"] = _salted(salt, document.get("cache_salt"))
        text = f"{salt}\n{text}"
    counts = {name: _whole(document, name) for name in ("n", "best_of", *route.max_tokens)}
    if not route.form:
        numbers = {name: n for name, n in counts.items() if n is not None}
        # The name comes first, so that another one can be put there without reading the body again.
        named = {"model": model} if model else {}
        document = without_nulls(named | document | numbers, fields)
        body = orjson.dumps(document)
        begin = len(b'{"model":')
        end = begin + len(orjson.dumps(model))
    answers = _answers(route, document, counts)
    prompt, media = prompt_bytes(document, len(body)) if not route.form else (len(text.encode()), 1)
    if given:
        # Numbers are tokens, and not text.
        prompt = len(text.encode("utf-8", "replace"))
    return Asked(
        path=route.at_replica,
        body=body,
        model=model,
        stream=bool(stream),
        text=text,
        given_tokens=given,
        prompt_bytes=prompt,
        media=media,
        max_tokens=max((counts[name] or 0 for name in route.max_tokens), default=0) or None,
        answers=answers,
        transferable=path in TRANSFERABLE and answers == 1 and _transferable(document),
        session=_session(document),
        costs=route.costs,
        hides_usage=hides_usage,
        model_begin=begin,
        model_end=end,
    )


def _salted(salt: str, own: object) -> str:
    if own is None:
        return salt
    if not isinstance(own, str):
        raise invalid_value("cache_salt", f"expected a text, found {kind_of(own)}")
    mixed = f"{salt} {own}".encode("utf-8", "replace")
    return hashlib.blake2b(mixed, digest_size=16).hexdigest()


def _add_usage(document: dict[str, Any]) -> bool:
    options = document.get("stream_options")
    given = {} if options is None else options
    if not isinstance(given, dict) or given.get("include_usage"):
        return False
    document["stream_options"] = {**given, "include_usage": True}
    return True


def _form(content_type: bytes, body: bytes, max_depth: int) -> tuple[dict[str, Any], int, int]:
    document: dict[str, Any] = {}
    model = 0, 0
    for field in form_fields(content_type, body):
        if field.name in document and not field.name.endswith("[]"):
            raise invalid_value(field.name[:200], "expected the field once, found it twice")
        if field.is_file:
            document[field.name] = b""
            continue
        if field.end - field.begin > MAX_FIELD_BYTES:
            raise invalid_value(field.name[:200], f"expected at most {MAX_FIELD_BYTES} bytes, found more")
        document[field.name] = body[field.begin : field.end].decode("utf-8", "replace")
        if field.name == "model":
            model = field.begin, field.end
    if "stream" in document:
        # As pydantic reads it in vLLM; the replica rejects other values.
        document["stream"] = document["stream"].strip().lower() in ("true", "1", "on", "t", "y", "yes")
    arguments = document.get("vllm_xargs", "")
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):
        document["vllm_xargs"] = parse_object(arguments.encode(), max_depth=max_depth)
    check_transfers(document)
    return document, *model


def _answers(route: Route, document: Mapping[str, Any], counts: Mapping[str, int | None]) -> int:
    if not route.writes:
        return 0
    prompts = max(1, _prompts(document.get("prompt")) + count_of(document.get("prompt_embeds")))
    answers = max(1, counts["n"] or 0, counts["best_of"] or 0) * prompts
    return min(answers, MAX_ANSWERS)


def _session(document: Mapping[str, Any]) -> str | None:
    metadata = document.get("metadata")
    session = (
        document.get("prompt_cache_key")
        or document.get("user")
        or (metadata.get("user_id") if isinstance(metadata, dict) else None)
    )
    return session[:MAX_NAME_CHARS] if isinstance(session, str) else None


def _whole(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    if (isinstance(value, str) and WHOLE.fullmatch(value)) or (
        isinstance(value, float) and value.is_integer()
    ):
        value = int(value)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= EXACT:
        found = value if isinstance(value, int) else kind_of(value)
        raise invalid_value(name, f"expected a whole number from 0 to 2^53, found {found}")
    return value


def _prompts(prompt: object) -> int:
    return 1 if isinstance(prompt, list) and prompt and isinstance(prompt[0], int) else count_of(prompt)


def _transferable(document: Mapping[str, Any]) -> bool:
    asked = (document.get(name) for name in NEEDS_PROMPT)
    return all(value is None or value is False for value in asked) and KV_TRANSFER not in document


def with_model(asked: Asked, name: str) -> Asked:
    written = name.encode() if ROUTES[asked.path].form else orjson.dumps(name)
    body = b"".join((asked.body[: asked.model_begin], written, asked.body[asked.model_end :]))
    return replace(asked, model=name, body=body, model_end=asked.model_begin + len(written))
