"""Servers with the OpenAI protocol: vLLM, Ray Serve, SGLang, TensorRT-LLM's server, llama.cpp.

`/v1/completions` takes prompts as text or token ids; `/v1/chat/completions` takes each text as one user
message. Extensions of vLLM, also in servers that follow it: `ignore_eos` and `min_tokens` for answers of
exact length, `continuous_usage_stats` for the number of tokens in each event.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from forebay.bench.records import LoadRequest
from forebay.bench.targets.base import TRIAL, OnPiece, Piece, try_one
from forebay.bench.targets.events import (
    CONTENT,
    NOTHING,
    ONE_TOKEN,
    EventReader,
    count,
    open_server,
    text_prompt,
)
from forebay.clients.http.readers import WholeAnswer
from forebay.clients.http.server import HttpServer
from forebay.engine.client import replica_url
from forebay.engine.failures import Redactor, error_from_object, error_from_status
from forebay.engine.protocol import CHAT_PATH, PROMPT_PATH
from forebay.errors import BadRequest, EngineError, ProtocolViolation, ServerFault, SettingError

MODELS_PATH = "/v1/models"
MAX_LIST_BYTES = 8 << 20
OTHER_PARTS = ("reasoning", "reasoning_content", "tool_calls", "refusal", "function_call")
"""Fields of a chat's delta that hold generated tokens besides its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiOptions:
    """`model` None: the one that the server lists. `extensions`: whether to send vLLM's extensions; None: if
    the server accepts them. `extra`: further fields of each request."""

    model: str | None = None
    chat: bool = False
    api_key: str | None = field(default=None, repr=False)
    extensions: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class OpenAiTarget:
    def __init__(self, url: str, options: OpenAiOptions | None = None) -> None:
        self.url = replica_url(url)
        self._options = options or OpenAiOptions()
        self._quote = Redactor(self._options.api_key)
        self._path = CHAT_PATH if self._options.chat else PROMPT_PATH
        self._model = self._options.model or ""
        self._extensions = bool(self._options.extensions)
        self._server: HttpServer | None = None

    @property
    def name(self) -> str:
        return f"{self.url}{self._path}"

    @property
    def model(self) -> str:
        """The model's name; known once the target is open."""
        return self._model

    @property
    def extensions(self) -> bool:
        """Whether requests carry vLLM's extensions; known once the target is open."""
        return self._extensions

    @asynccontextmanager
    async def open(
        self, connections: int = 1, trials: Sequence[LoadRequest] = (TRIAL,)
    ) -> AsyncIterator[None]:
        """As in `Target`. Asks for the model unless it is set. Trial requests show whether the server accepts
        vLLM's extensions; none is sent if that is set."""
        self._server = open_server(self.url, self._options.api_key)
        try:
            await self._server.connect()
            if self._options.model is None:
                self._model = await self._served()
            if self._options.extensions is None:
                await self._try_out(trials)
            await self._server.make_ready(connections)
            yield
        finally:
            await self._server.close()
            self._server = None

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        assert self._server is not None, "the target is not open"
        reader = EventReader(self.url, self._model, self._quote, self._events(), on_piece)
        await self._server.post(self._path, self._body(request), reader)
        reader.finish()

    def _body(self, request: LoadRequest) -> bytes:
        prompt = request.prompt
        body: dict[str, Any] = {"model": self._model}
        if not self._options.chat:
            body["prompt"] = prompt.tolist() if isinstance(prompt, array) else prompt
        else:
            body["messages"] = [{"role": "user", "content": text_prompt(request, "a chat completion")}]
        body["max_tokens"] = request.output_tokens
        body["temperature"] = 0
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        if self._extensions:
            body["stream_options"]["continuous_usage_stats"] = True
            if request.exact:
                body["ignore_eos"] = True
                body["min_tokens"] = request.output_tokens
        body.update(self._options.extra)
        return orjson.dumps(body)

    def _events(self) -> _OpenAiEvents:
        return _OpenAiEvents(self.url, self._model, self._quote, chat=self._options.chat)

    async def _served(self) -> str:
        assert self._server is not None
        answer = WholeAnswer(self.url, max_bytes=MAX_LIST_BYTES, max_error_bytes=MAX_LIST_BYTES)
        await self._server.get(MODELS_PATH, answer)
        if answer.status != 200:
            raise error_from_status(
                answer.status, bytes(answer.data), replica=self.url, model="", quote=self._quote
            )
        try:
            names = [str(model["id"]) for model in orjson.loads(bytes(answer.data))["data"]]
        except (ValueError, KeyError, TypeError):
            raise ProtocolViolation(f"{self.url}{MODELS_PATH} did not list its models; name one") from None
        if len(names) != 1:
            listed = ", ".join(names[:10]) or "none"
            raise SettingError(f"{self.url} serves {len(names)} models ({self._quote(listed)}): name one")
        return names[0]

    async def _try_out(self, trials: Sequence[LoadRequest]) -> None:
        """Send the trial requests, and find out whether the server accepts vLLM's extensions."""
        self._extensions = True
        for trial in trials:
            try:
                await self._try_with_or_without(trial)
            except (BadRequest, ServerFault) as error:
                if not isinstance(trial.prompt, str) and not self._options.chat:
                    await self._check_tokens(error)
                if not error.retryable:
                    raise

    async def _try_with_or_without(self, trial: LoadRequest) -> None:
        """Send a trial request; if it is rejected, repeat it without vLLM's extensions."""
        try:
            await try_one(self, trial, faults=True)
        except BadRequest:
            if not self._extensions:
                raise
            self._extensions = False
            await try_one(self, trial, faults=True)

    async def _check_tokens(self, error: EngineError) -> None:
        """After token ids failed with `error`: raise `SettingError` if a text is answered."""
        self._extensions = True
        try:
            await self._try_with_or_without(TRIAL)
        except (BadRequest, ServerFault):
            return
        raise SettingError(
            f"{self.name} answers text prompts but not token ids, which this load has; measure "
            f"with --protocol chat, or with texts from --data. The server's answer: {error}"
        ) from None


class _OpenAiEvents:
    __slots__ = ("_chat", "_model", "_quote", "_tokens", "_untold", "_url")

    def __init__(self, url: str, model: str, quote: Redactor, *, chat: bool) -> None:
        self._url = url
        self._model = model
        self._quote = quote
        self._chat = chat
        self._tokens = 0
        self._untold = False

    def __call__(self, event: Any) -> Piece:
        choices, usage = event.get("choices"), event.get("usage")
        if choices is None or event.get("error") is not None:
            raise self._error(event)
        if not choices:
            return NOTHING if usage is None else _usage(usage)
        choice = choices[0]
        reason = choice.get("finish_reason")
        text = self._text(choice)
        total = None if usage is None else count(usage["completion_tokens"])
        tokens = None
        # If earlier pieces had no count, the total is that of the whole answer.
        if total is not None and not self._untold:
            tokens = max(0, total - self._tokens)
        elif choice.get("token_ids") is not None:
            tokens = len(choice["token_ids"])
        if total is not None:
            self._tokens = total
        # A token may have no text: a special one, or part of a character.
        content = text or bool(tokens)
        self._untold = self._untold or (content and usage is None)
        if reason is None and usage is None:
            return (CONTENT if tokens is None else Piece(True, tokens)) if content else NOTHING
        if reason is None and content and tokens == 1:
            return ONE_TOKEN
        if reason is not None and not isinstance(reason, str):
            raise TypeError("finish_reason")
        output_tokens = None if usage is None else self._tokens
        return Piece(content, tokens if content else None, None, output_tokens, None, reason)

    def _text(self, choice: Any) -> bool:
        if not self._chat:
            return bool(choice["text"])
        delta = choice["delta"]
        return bool(delta.get("content")) or any(delta.get(part) for part in OTHER_PARTS)

    def _error(self, event: Any) -> EngineError:
        error = event.get("error") or (event if event.get("object") == "error" else None)
        if error is None:
            raise KeyError("choices")
        return error_from_object(error, replica=self._url, model=self._model, quote=self._quote)


def _usage(usage: Any) -> Piece:
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return Piece(
        prompt_tokens=count(usage["prompt_tokens"]),
        output_tokens=count(usage.get("completion_tokens") or 0),
        cached_tokens=None if cached is None else count(cached),
    )
