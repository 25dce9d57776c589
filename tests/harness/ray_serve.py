"""Documents of Ray Serve's REST interface, and a server that returns them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer

from forebay.clients.ray import IMPORT_PATH

FIRST_PID = 30_100


def application(
    name: str,
    *,
    status: str = "RUNNING",
    states: Sequence[str] = (),
    target: int | None = None,
    import_path: str | None = IMPORT_PATH,
    message: str = "",
    deployed_s: float = 1.0,
    health: str = "HEALTHY",
    trigger: str = "",
    submitted: int | None = None,
    built: bool = True,
) -> dict[str, Any]:
    replicas = [
        {"replica_id": f"r{at}", "state": state, "node_ip": "127.0.0.2", "pid": FIRST_PID + at}
        for at, state in enumerate(states)
    ]
    arguments = {"first_port": 20_000, "ports": 10_000}
    config: dict[str, Any] = {"name": name, "import_path": import_path, "args": arguments}
    if submitted is not None:
        config["deployments"] = [{"name": "engine", "num_replicas": submitted}]
    deployments = {
        "engine": {
            "status": health,
            "status_trigger": trigger,
            "message": message,
            "target_num_replicas": len(states) if target is None else target,
            "replicas": replicas,
        }
    }
    deleted = status == "DELETING"
    return {
        "name": name,
        "status": status,
        "message": message,
        "last_deployed_time_s": deployed_s,
        "source": "declarative" if import_path else "imperative",
        "deployed_app_config": config if import_path and not deleted else None,
        "deployments": deployments if built and not deleted else {},
    }


def body(*applications: dict[str, Any]) -> dict[str, Any]:
    return {"applications": {each["name"]: each for each in applications}, "target_capacity": None}


@dataclass
class ScriptedServe:
    """A Ray cluster: each call returns the next of `answers`, then always the last."""

    answers: list[Any]
    status: int = 200
    submitted: list[dict[str, Any]] = field(default_factory=list)
    scaled: list[tuple[str, Any]] = field(default_factory=list)
    on_submit: Callable[[], None] = lambda: None
    address: str = ""
    authorizations: list[str | None] = field(default_factory=list)

    async def look(self, request: web.Request) -> web.Response:
        self.authorizations.append(request.headers.get("Authorization"))
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        data = answer if isinstance(answer, bytes) else orjson.dumps(answer)
        return web.Response(status=self.status, body=data)

    async def submit(self, request: web.Request) -> web.Response:
        self.authorizations.append(request.headers.get("Authorization"))
        self.submitted.append(await request.json())
        self.on_submit()
        return web.Response(status=self.status)

    async def scale(self, request: web.Request) -> web.Response:
        self.scaled.append((request.path, await request.json()))
        return web.json_response({"error": "external_scaler_enabled=false"}, status=self.status)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[ScriptedServe]:
        made = web.Application()
        made.router.add_get("/api/serve/applications/", self.look)
        made.router.add_put("/api/serve/applications/", self.submit)
        made.router.add_post("/api/v1/applications/{a}/deployments/{d}/scale", self.scale)
        server = TestServer(made, host="127.0.0.1")
        async with server:
            self.address = str(server.make_url("")).rstrip("/")
            yield self
