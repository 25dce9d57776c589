"""An inference gateway in front of one replica: forwards completions, and records their headers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass
class ScriptedGateway:
    """Refuses the first `refused` calls with 503, like a picker whose pool is full; forwards the
    others to `replica`. With a `key`, refuses calls without it."""

    replica: str
    refused: int = 0
    key: str = ""
    url: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        if request.method != "POST":
            raise web.HTTPNotFound
        self.calls.append({name.lower(): value for name, value in request.headers.items()})
        if len(self.calls) <= self.refused:
            raise web.HTTPServiceUnavailable
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            raise web.HTTPUnauthorized
        if "((refused))" in await request.text():
            raise web.HTTPForbidden
        kept = {name: request.headers.get(name, "-") for name in ("Content-Type", "X-Request-Id")}
        async with (
            aiohttp.ClientSession() as http,
            http.post(self.replica + request.path, data=await request.read(), headers=kept) as found,
        ):
            return web.Response(
                body=await found.read(),
                status=found.status,
                headers={"Content-Type": found.headers["Content-Type"]},
            )

    @asynccontextmanager
    async def served(self) -> AsyncIterator[ScriptedGateway]:
        made = web.Application()
        made.router.add_route("*", "/{path:.*}", self._answer)
        async with TestServer(made, host="127.0.0.1") as server:
            self.url = str(server.make_url("")).rstrip("/")
            yield self
