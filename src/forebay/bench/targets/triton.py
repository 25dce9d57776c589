"""NVIDIA's Triton Inference Server: the generate extension's `generate_stream`.

A request's fields depend on the model. Two kinds are supported: Triton's vLLM backend, with vLLM's sampling
parameters in `parameters`, and the ensemble of its TensorRT-LLM backend, whose inputs are fields of the
request. Events have text, but no token counts, usage or finish reason; the answer ends with the body.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote as percent_encode

import orjson

from forebay.bench.records import LoadRequest
from forebay.bench.targets.base import TRIAL, OnPiece, Piece, try_one
from forebay.bench.targets.events import CONTENT, NOTHING, EventReader, open_server, text_prompt
from forebay.clients.http.server import HttpServer
from forebay.engine.client import replica_url
from forebay.engine.failures import Redactor, error_from_object
from forebay.errors import SettingError

VLLM, TENSORRT_LLM = "vllm", "tensorrtllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonOptions:
    """`model`: its name in Triton's repository. `backend`: `vllm` or `tensorrtllm`. `extra`: further fields,
    of `parameters` or of the request, depending on the backend."""

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


class TritonTarget:
    def __init__(self, url: str, options: TritonOptions) -> None:
        self.url = replica_url(url)
        self._options = options
        self._quote = Redactor(options.api_key)
        self._path = f"/v2/models/{percent_encode(options.model, safe='')}/generate_stream"
        self._server: HttpServer | None = None

    @property
    def name(self) -> str:
        return f"{self.url}{self._path}"

    @property
    def model(self) -> str:
        return self._options.model

    @asynccontextmanager
    async def open(
        self, connections: int = 1, trials: Sequence[LoadRequest] = (TRIAL,)
    ) -> AsyncIterator[None]:
        self._server = open_server(self.url, self._options.api_key)
        try:
            await self._server.connect()
            for trial in trials:
                await try_one(self, trial)
            await self._server.make_ready(connections)
            yield
        finally:
            await self._server.close()
            self._server = None

    async def answer(self, request: LoadRequest, on_piece: OnPiece) -> None:
        assert self._server is not None, "the target is not open"
        reader = EventReader(
            self.url, self._options.model, self._quote, self._take, on_piece, ends_with_body=True
        )
        await self._server.post(self._path, orjson.dumps(self._body(request)), reader)
        reader.finish()

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
            raise error_from_object(error, replica=self.url, model=self._options.model, quote=self._quote)
        text = event["text_output"]
        if not isinstance(text, str):
            raise TypeError("text_output")
        return CONTENT if text else NOTHING
