"""One replica as a fleet uses it: it answers requests, and reports its health, load, models and context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from forebay.clients.http.readers import CallOverdue, WholeAnswer
from forebay.clients.http.server import HttpServer
from forebay.clock import Clock, SystemClock
from forebay.engine import Deadline
from forebay.engine.client import HttpEngine, request_headers
from forebay.engine.completion_reader import MAX_ERROR_BYTES
from forebay.engine.failures import ABSENT, Redactor, error_from_answer
from forebay.engine.load import ReplicaCounters, parse_cache_tokens, parse_metrics
from forebay.engine.protocol import CHAT_PATH, EMBED_PATH, PROMPT_PATH
from forebay.errors import (
    AttemptTimeout,
    BadRequest,
    EngineError,
    ModelNotFound,
    ProtocolViolation,
    SettingError,
)
from forebay.records import Completion, ReplicaLoad, Request

MAX_MODELS_BYTES = 1 << 20
MAX_METRICS_BYTES = 8 << 20
REFUSES_ANYONE = frozenset((401, 403, 408, 429))
JSON_BODY = (("Content-Type", "application/json"),)
NO_LIST = (BadRequest, ModelNotFound, ProtocolViolation)
"""Errors of a server without a list of its models: 404, 405, 501, or something else."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`max_model_len`: context in tokens, if reported; `card`: the model's object in `/v1/models`."""

    name: str
    max_model_len: int | None = None
    card: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


class ReplicaEngine(Protocol):
    async def complete(
        self,
        request: Request,
        *,
        timeout_s: float,
        deadline: Deadline | None = None,
        on_content: Callable[[int], None] | None = None,
    ) -> Completion: ...

    async def close(self) -> None: ...


class ReplicaConnection(Protocol):
    """The calls that a fleet makes to a replica. All except `engine` raise the `EngineError` of the cause."""

    @property
    def engine(self) -> ReplicaEngine: ...

    async def check_health(self, timeout_s: float) -> bool:
        """True: healthy. False: reachable, but without a health endpoint or with one that requires a key."""
        ...

    async def list_models(self, timeout_s: float) -> tuple[ServedModel, ...]: ...

    async def fetch_metrics(self, timeout_s: float) -> tuple[ReplicaLoad, ReplicaCounters]: ...

    async def fetch_cache_tokens(self, timeout_s: float) -> float | None: ...

    async def probe(self, model: str, timeout_s: float) -> None:
        """Request one token. Returns on an answer, and if the replica rejects only such a request."""
        ...

    async def close(self) -> None: ...


class HttpReplica:
    """A `ReplicaConnection` over HTTP. Polls use one connection that is kept, separate from the requests'."""

    def __init__(
        self, url: str, *, api_key: str | None = None, stream: bool = True, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._engine = HttpEngine(url, api_key=api_key, stream=stream, clock=self._clock)
        self._url = self._engine.url
        self._quote = Redactor(api_key)
        self._server = HttpServer(self._url, headers=request_headers(api_key), quote=self._quote)

    @property
    def engine(self) -> HttpEngine:
        return self._engine

    async def check_health(self, timeout_s: float = 2.0) -> bool:
        answer = await self._ask("/health", timeout_s, MAX_MODELS_BYTES)
        if answer.status >= 500:
            raise self._error(answer)
        return answer.status == 200

    async def list_models(self, timeout_s: float = 10.0) -> tuple[ServedModel, ...]:
        self._engine.gathers_tokens = False
        body = await self._get("/v1/models", timeout_s, MAX_MODELS_BYTES)
        try:
            document: Any = orjson.loads(body)
            models = tuple(_model(entry) for entry in document["data"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            detail = self._quote(body.decode("utf-8", "replace"))
            raise ProtocolViolation(
                f"{self._url}/v1/models did not return a list of models: {detail}"
            ) from None
        self._engine.gathers_tokens = bool(models) and all(_is_vllms(model) for model in models)
        return models

    async def fetch_metrics(self, timeout_s: float = 10.0) -> tuple[ReplicaLoad, ReplicaCounters]:
        body = await self._get("/metrics", timeout_s, MAX_METRICS_BYTES)
        return parse_metrics(body.decode("utf-8", "replace"), observed_s=self._clock.monotonic_s())

    async def fetch_cache_tokens(self, timeout_s: float = 10.0) -> float | None:
        body = await self._get("/metrics", timeout_s, MAX_METRICS_BYTES)
        return parse_cache_tokens(body.decode("utf-8", "replace"))

    async def probe(self, model: str, timeout_s: float = 10.0, *, chat: bool = False) -> None:
        prompt: tuple[str, dict[str, object]] = PROMPT_PATH, {"prompt": "a"}
        messages: tuple[str, dict[str, object]] = CHAT_PATH, {"messages": [{"role": "user", "content": "a"}]}
        first = (messages, prompt) if chat else (prompt, messages)
        for path, question in (*first, (EMBED_PATH, {"input": "a"})):
            payload = {"model": model, "max_tokens": 1} | question
            answer = await self._ask(path, timeout_s, MAX_MODELS_BYTES, payload)
            status = answer.status
            if status in REFUSES_ANYONE or (status >= 500 and status not in ABSENT):
                raise self._error(answer)
            if _is_answer(bytes(answer.data)) if status == 200 else status >= 400 and status not in ABSENT:
                return
        raise self._error(answer)

    async def close(self) -> None:
        await self._engine.close()
        await self._server.close()

    async def _get(self, path: str, timeout_s: float, limit: int) -> bytes:
        answer = await self._ask(path, timeout_s, limit)
        if answer.status != 200:
            raise self._error(answer)
        return bytes(answer.data)

    async def _ask(self, path: str, timeout_s: float, limit: int, payload: object = None) -> WholeAnswer:
        answer = WholeAnswer(self._url, max_bytes=limit, max_error_bytes=MAX_ERROR_BYTES)
        try:
            if payload is None:
                await self._server.get(path, answer, total_s=timeout_s)
            else:
                await self._server.post(
                    path, orjson.dumps(payload), answer, headers=JSON_BODY, total_s=timeout_s
                )
        except CallOverdue:
            raise AttemptTimeout(f"{self._url}{path} did not answer within {timeout_s:g} s") from None
        return answer

    def _error(self, answer: WholeAnswer) -> EngineError:
        return error_from_answer(answer, replica=self._url, quote=self._quote)


async def list_models(url: str, *, api_key: str | None = None) -> tuple[ServedModel, ...]:
    """Raises the `EngineError` of the cause."""
    replica = HttpReplica(url, api_key=api_key)
    try:
        return await replica.list_models()
    finally:
        await replica.close()


async def probe_error(
    url: str, model: str, *, api_key: str | None = None, within_s: float, chat: bool = False
) -> EngineError | None:
    """The error of `HttpReplica.probe`; None if it returns."""
    replica = HttpReplica(url, api_key=api_key)
    try:
        await replica.probe(model, within_s, chat=chat)
    except EngineError as error:
        return error
    finally:
        await replica.close()
    return None


def _is_answer(body: bytes) -> bool:
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, Mapping) and ("choices" in document or "data" in document)


def _is_vllms(model: ServedModel) -> bool:
    return model.card.get("owned_by") == "vllm"


def _model(entry: Any) -> ServedModel:
    name, length = entry["id"], entry.get("max_model_len")
    if not isinstance(name, str):
        raise TypeError("a model's id is not a string")
    return ServedModel(name, length if type(length) is int and length > 0 else None, entry)


@dataclass(frozen=True, slots=True)
class ContextNeed:
    """The context that the largest call takes.

    `tokens`: prompt and answer together. `key`: the setting that decides `adjustable` of them, at `least`
    this many. `what`: the call, for messages.
    """

    tokens: int
    key: str
    what: str
    adjustable: int
    least: int = 1


def check_context(need: ContextNeed, served: ServedModel) -> None:
    """Raise `SettingError` if the context of `served` is known and shorter than `need`."""
    context = served.max_model_len
    if context is None or need.tokens <= context:
        return
    most = need.adjustable - (need.tokens - context)
    lower = f", or set {need.key} to at most {most}" if most >= need.least else ""
    raise SettingError(
        f"{need.key}: {need.what} takes up to {need.tokens:,} tokens of context, and the model "
        f"{served.name!r} has {context:,}: start the engine with a longer context (vLLM: `--max-model-len "
        f"{need.tokens}`, `forebay engine up --max-model-len {need.tokens}`){lower}"
    )


def answer_need(max_tokens: int) -> ContextNeed:
    return ContextNeed(max_tokens + 1, "sampling.max_tokens", "the answer with its prompt", max_tokens)
