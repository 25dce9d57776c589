"""Hugging Face's Text Generation Inference: `/generate_stream`, one event per token.

Follows its OpenAPI document: prompts are texts; the last event has `details` with the finish reason and the
number of tokens. Answers of exact length cannot be requested.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson

from forebay.bench.records import LoadRequest
from forebay.bench.targets.base import TRIAL, OnPiece, Piece, try_one
from forebay.bench.targets.events import ONE_TOKEN, EventReader, count, open_server, text_prompt
from forebay.clients.http.server import HttpServer
from forebay.engine.client import replica_url
from forebay.engine.failures import Redactor, error_from_object
from forebay.errors import Overloaded

PATH = "/generate_stream"


class TgiTarget:
    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self.url = replica_url(url)
        self._api_key = api_key
        self._quote = Redactor(api_key)
        self._server: HttpServer | None = None

    @property
    def name(self) -> str:
        return f"{self.url}{PATH}"

    @property
    def model(self) -> None:
        """Requests do not name the model."""

    @asynccontextmanager
    async def open(
        self, connections: int = 1, trials: Sequence[LoadRequest] = (TRIAL,)
    ) -> AsyncIterator[None]:
        self._server = open_server(self.url, self._api_key)
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
        body = {
            "inputs": text_prompt(request, "Text Generation Inference"),
            "parameters": {"max_new_tokens": request.output_tokens, "details": True, "do_sample": False},
        }
        reader = EventReader(self.url, "", self._quote, self._take, on_piece)
        await self._server.post(PATH, orjson.dumps(body), reader)
        reader.finish()

    def _take(self, event: Any) -> Piece:
        if "error" in event:
            if event.get("error_type") == "overloaded":
                raise Overloaded(f"{self.url} broke off: {self._quote(str(event['error']))}")
            raise error_from_object(event["error"], replica=self.url, model="", quote=self._quote)
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
