"""Text Generation Inference, and Triton's generate extension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote as percent_encode

from forebay.bench.records import LoadRequest
from forebay.bench.targets.base import (
    CONTENT,
    NOTHING,
    ONE_TOKEN,
    HttpTarget,
    Piece,
    TakeEvent,
    count,
    text_prompt,
)
from forebay.errors import Overloaded, SettingError

PATH = "/generate_stream"


class TgiTarget(HttpTarget):
    """One event per token; requests name no model."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        super().__init__(url, PATH, api_key)

    def _body(self, request: LoadRequest) -> dict[str, Any]:
        parameters = {"max_new_tokens": request.output_tokens, "details": True, "do_sample": False}
        return {"inputs": text_prompt(request, "Text Generation Inference"), "parameters": parameters}

    def _taker(self) -> TakeEvent:
        return self._take

    def _take(self, event: Any) -> Piece:
        if "error" in event:
            if event.get("error_type") == "overloaded":
                raise Overloaded(f"{self.url} broke off: {self._quote(str(event['error']))}")
            raise self._error(event["error"])
        count(event["token"]["id"])
        details = event.get("details")
        if details is None:
            return ONE_TOKEN
        prompt_tokens = details.get("input_length")
        return Piece(
            content=True,
            tokens=1,
            prompt_tokens=None if prompt_tokens is None else count(prompt_tokens),
            output_tokens=count(details["generated_tokens"]),
            finish_reason=str(details["finish_reason"]),
        )


VLLM, TENSORRT_LLM = "vllm", "tensorrtllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonOptions:
    model: str
    backend: str = VLLM
    api_key: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.model:
            raise SettingError("Triton: name the model: Triton's paths have it")
        if self.backend not in (VLLM, TENSORRT_LLM):
            raise SettingError(
                f"Triton: expected the backend {VLLM} or {TENSORRT_LLM}, found {self.backend!r}"
            )


class TritonTarget(HttpTarget):
    ends_with_body = True

    def __init__(self, url: str, options: TritonOptions) -> None:
        path = f"/v2/models/{percent_encode(options.model, safe='')}/generate_stream"
        super().__init__(url, path, options.api_key)
        self._options = options
        self.model = options.model

    def _taker(self) -> TakeEvent:
        return self._take

    def _body(self, request: LoadRequest) -> dict[str, Any]:
        text = text_prompt(request, "Triton's generate extension")
        if self._options.backend == TENSORRT_LLM:
            inputs = {"max_tokens": request.output_tokens, "bad_words": "", "stop_words": "", "stream": True}
            return {"text_input": text, **inputs, **self._options.extra}
        parameters: dict[str, Any] = {
            "stream": True,
            "temperature": 0,
            "max_tokens": request.output_tokens,
            "exclude_input_in_output": True,
        }
        if request.exact:
            parameters |= {"ignore_eos": True, "min_tokens": request.output_tokens}
        return {"text_input": text, "parameters": {**parameters, **self._options.extra}}

    def _take(self, event: Any) -> Piece:
        error = event.get("error")
        if error is not None:
            raise self._error(error)
        text = event["text_output"]
        if not isinstance(text, str):
            raise TypeError("text_output")
        return CONTENT if text else NOTHING
