"""The calls that the gateway forwards, and how each prompt is found. Engines may lack any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from forebay.engine.protocol import CHAT_PATH, PROMPT_PATH
from forebay.fleet.routing_request import message_text
from forebay.gateway.body import kind_of
from forebay.gateway.refusal import invalid_value

Document = Mapping[str, Any]
Reader = Callable[[Document], tuple[str, int]]
"""Returns a prompt's text, and its number of tokens given as numbers. Readers of OpenAI's own calls raise
`Refusal` (400) if it is missing or of the wrong type; the replica checks the rest."""


def messages_of(document: Document) -> tuple[str, int]:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid_value(
            "messages", f"expected a list with at least one message, found {kind_of(messages)}"
        )
    text = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid_value(f"messages[{at}]", f"expected an object, found {kind_of(message)}")
        role = message.get("role")
        if not isinstance(role, str):
            raise invalid_value(f"messages[{at}].role", f"expected a text, found {kind_of(role)}")
        text.append(message_text(role, message.get("content")))
    return "".join(text), 0


def prompt_of(document: Document) -> tuple[str, int]:
    return _prompt(document.get("prompt"), "prompt")


def input_of(document: Document) -> tuple[str, int]:
    if "input" not in document and "messages" in document:
        return messages_of(document)
    return _prompt(document.get("input"), "input")


def texts_in(*fields: str) -> Reader:
    def read(document: Document) -> tuple[str, int]:
        texts: list[str] = []
        tokens = sum(_collect(document.get(field), texts) for field in fields)
        return "\0".join(texts), tokens

    return read


def _collect(value: object, texts: list[str]) -> int:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict):
        content = value.get("content", value.get("text"))
        texts.append(message_text(str(value.get("role", "")), content))
    elif isinstance(value, list):
        if value and isinstance(value[0], int):
            return len(value)
        return sum(_collect(item, texts) for item in value)
    return 0


def _prompt(prompt: object, param: str) -> tuple[str, int]:
    if isinstance(prompt, str):
        return prompt, 0
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], int):
            return "", len(prompt)
        texts = [one for one in prompt if isinstance(one, str)]
        return "\0".join(texts), sum(len(one) for one in prompt if isinstance(one, list))
    raise invalid_value(param, f"expected a text, tokens or a list of them, found {kind_of(prompt)}")


EMBED_PATH = "/v1/embeddings"
RESPONSES_PATH = "/v1/responses"
MESSAGES_PATH = "/v1/messages"

Dialect = Literal["openai", "responses", "anthropic"]


@dataclass(frozen=True, slots=True)
class Route:
    """A forwarded call.

    Attributes:
        path: Its path at the gateway.
        max_tokens: Fields that limit the answer's length; the largest counts.
        writes: Whether tokens are generated.
        costs: Whether it counts in limits and estimates.
        streams: Whether the answer may be a stream.
        needs_model: Whether the body must name a model even if there is only one.
        form: Whether the body is a form (`multipart/form-data`).
        dialect: The format of its errors.
        upstream: Its path at the replica, if different.
    """

    path: str
    summary: str
    prompt: Reader
    max_tokens: tuple[str, ...] = ()
    writes: bool = False
    costs: bool = True
    streams: bool = False
    needs_model: bool = True
    form: bool = False
    dialect: Dialect = "openai"
    upstream: str = ""

    @property
    def at_replica(self) -> str:
        return self.upstream or self.path


SCORED = texts_in("queries", "documents", "items", "text_1", "text_2", "data_1", "data_2")
RANKED = texts_in("query", "documents")
POOLED = texts_in("input", "messages", "data")


def _score(path: str) -> Route:
    return Route(path, "Score pairs of texts.", SCORED, needs_model=False)


def _rerank(path: str) -> Route:
    return Route(path, "Order documents by their relevance for a query.", RANKED, needs_model=False)


def _classify(path: str) -> Route:
    # vLLM has the path only without /v1.
    return Route(path, "Classify texts.", POOLED, needs_model=False, upstream="/classify")


def _to_text(path: str, summary: str) -> Route:
    fields = ("max_completion_tokens",)
    return Route(path, summary, texts_in("prompt"), fields, writes=True, streams=True, form=True)


ROUTES = {
    route.path: route
    for route in (
        Route(
            CHAT_PATH,
            "Answer a conversation.",
            messages_of,
            ("max_tokens", "max_completion_tokens"),
            writes=True,
            streams=True,
        ),
        Route(PROMPT_PATH, "Continue a text.", prompt_of, ("max_tokens",), writes=True, streams=True),
        Route(EMBED_PATH, "Embed texts.", input_of),
        Route(
            RESPONSES_PATH,
            "Answer by OpenAI's Responses API.",
            texts_in("instructions", "input"),
            ("max_output_tokens",),
            writes=True,
            streams=True,
            dialect="responses",
        ),
        Route(
            MESSAGES_PATH,
            "Answer by Anthropic's Messages API.",
            texts_in("system", "messages"),
            ("max_tokens",),
            writes=True,
            streams=True,
            dialect="anthropic",
        ),
        Route(
            f"{MESSAGES_PATH}/count_tokens",
            "Count the tokens of a conversation.",
            texts_in(),
            costs=False,
            dialect="anthropic",
        ),
        _score("/v1/score"),
        _score("/score"),
        _rerank("/v1/rerank"),
        _rerank("/v2/rerank"),
        _rerank("/rerank"),
        _classify("/v1/classify"),
        _classify("/classify"),
        Route("/pooling", "Compute what a pooling model returns.", POOLED, needs_model=False),
        Route("/tokenize", "Turn text into tokens.", texts_in(), costs=False, needs_model=False),
        Route("/detokenize", "Turn tokens into text.", texts_in(), costs=False, needs_model=False),
        _to_text("/v1/audio/transcriptions", "Transcribe speech."),
        _to_text("/v1/audio/translations", "Translate speech to English."),
        Route("/v1/audio/speech", "Speak a text.", texts_in("instructions", "input"), streams=True),
    )
}
TRANSFERABLE = frozenset((CHAT_PATH, PROMPT_PATH))

MODELS_PATH = "/v1/models"
MODEL_PATH = "/v1/models/{model}"
OPEN = ("/health", "/metrics", "/openapi.json")
MONITORING = ("/health", "/metrics")
METHODS = dict.fromkeys(ROUTES, "POST") | dict.fromkeys((MODELS_PATH, MODEL_PATH, *OPEN), "GET")


def route_of(path: str) -> str:
    return MODEL_PATH if path.startswith(MODELS_PATH + "/") and path != MODELS_PATH + "/" else path


def dialect_of(path: str) -> Dialect:
    route = ROUTES.get(path)
    return "openai" if route is None else route.dialect
