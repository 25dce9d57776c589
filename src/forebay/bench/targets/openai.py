"""Servers with the OpenAI protocol: vLLM, Ray Serve, SGLang, TensorRT-LLM's server, llama.cpp."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from forebay.bench.records import LoadRequest
from forebay.bench.targets.base import (
    CONTENT,
    NOTHING,
    ONE_TOKEN,
    TRIAL,
    HttpTarget,
    Piece,
    count,
    text_prompt,
    try_one,
)
from forebay.clients.http.readers import WholeAnswer
from forebay.engine.failures import error_from_answer
from forebay.engine.protocol import CHAT_PATH, PROMPT_PATH
from forebay.errors import BadRequest, EngineError, ProtocolViolation, ServerFault, SettingError

MODELS_PATH = "/v1/models"
MAX_LIST_BYTES = 8 << 20
OTHER_PARTS = ("reasoning", "reasoning_content", "tool_calls", "refusal", "function_call")
"""Fields of a chat's delta that hold generated tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiOptions:
    """`model` None: the one that the server lists."""

    model: str | None = None
    chat: bool = False
    api_key: str | None = field(default=None, repr=False)
    extensions: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class OpenAiTarget(HttpTarget):
    def __init__(self, url: str, options: OpenAiOptions | None = None) -> None:
        self._options = options or OpenAiOptions()
        super().__init__(url, CHAT_PATH if self._options.chat else PROMPT_PATH, self._options.api_key)
        self.model = self._options.model
        self.extensions = bool(self._options.extensions)
        """Whether requests carry vLLM's extensions; known once the target is open."""

    def _body(self, request: LoadRequest) -> dict[str, Any]:
        prompt = request.prompt
        body: dict[str, Any] = {"model": self.model}
        if not self._options.chat:
            body["prompt"] = prompt.tolist() if isinstance(prompt, array) else prompt
        else:
            body["messages"] = [{"role": "user", "content": text_prompt(request, "a chat completion")}]
        body["max_tokens"] = request.output_tokens
        body["temperature"] = 0
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
        if self.extensions:
            body["stream_options"]["continuous_usage_stats"] = True
            if request.exact:
                body["ignore_eos"] = True
                body["min_tokens"] = request.output_tokens
        body.update(self._options.extra)
        return body

    def _taker(self) -> _OpenAiEvents:
        return _OpenAiEvents(self._error, chat=self._options.chat)

    async def _served(self) -> str:
        assert self._server is not None
        answer = WholeAnswer(self.url, max_bytes=MAX_LIST_BYTES, max_error_bytes=MAX_LIST_BYTES)
        await self._server.get(MODELS_PATH, answer)
        if answer.status != 200:
            raise error_from_answer(answer, replica=self.url, quote=self._quote)
        try:
            names = [str(model["id"]) for model in orjson.loads(bytes(answer.data))["data"]]
        except (ValueError, KeyError, TypeError):
            raise ProtocolViolation(f"{self.url}{MODELS_PATH} did not list its models; name one") from None
        if len(names) != 1:
            listed = ", ".join(names[:10]) or "none"
            raise SettingError(f"{self.url} serves {len(names)} models ({self._quote(listed)}): name one")
        return names[0]

    async def _try_out(self, trials: Sequence[LoadRequest]) -> None:
        if self._options.model is None:
            self.model = await self._served()
        if self._options.extensions is not None:
            return
        self.extensions = True
        for trial in trials:
            try:
                await self._try_with_or_without(trial)
            except (BadRequest, ServerFault) as error:
                if not isinstance(trial.prompt, str) and not self._options.chat:
                    await self._check_tokens(error)
                if not error.retryable:
                    raise

    async def _try_with_or_without(self, trial: LoadRequest) -> None:
        try:
            await try_one(self, trial, faults=True)
        except BadRequest:
            if not self.extensions:
                raise
            self.extensions = False
            await try_one(self, trial, faults=True)

    async def _check_tokens(self, error: EngineError) -> None:
        self.extensions = True
        try:
            await self._try_with_or_without(TRIAL)
        except (BadRequest, ServerFault):
            return
        raise SettingError(
            f"{self.name} answers text prompts but not token ids, which this load has; measure "
            f"with --protocol chat, or with texts from --data. The server's answer: {error}"
        ) from None


class _OpenAiEvents:
    def __init__(self, error_of: Callable[[Any], EngineError], *, chat: bool) -> None:
        self._error_of = error_of
        self._chat = chat
        self._tokens = 0
        self._usage_missing = False

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
        if total is not None and not self._usage_missing:
            tokens = max(0, total - self._tokens)
        elif choice.get("token_ids") is not None:
            tokens = len(choice["token_ids"])
        if total is not None:
            self._tokens = total
        # A token may have no text: a special one, or part of a character.
        content = text or bool(tokens)
        self._usage_missing = self._usage_missing or (content and usage is None)
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
        return self._error_of(error)


def _usage(usage: Any) -> Piece:
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return Piece(
        prompt_tokens=count(usage["prompt_tokens"]),
        output_tokens=count(usage.get("completion_tokens") or 0),
        cached_tokens=None if cached is None else count(cached),
    )
