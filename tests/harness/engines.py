"""An engine whose models and answers a test sets, and may change while it runs: for calls and lists of models
that `forebay.testing.FakeReplica` does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

import orjson
from aiohttp import web

from forebay.testing.replica import FakeReplica

MAX_BODY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Canned:
    body: bytes = b"{}"
    status: int = 200
    content_type: str = "application/json"
    events: tuple[bytes, ...] = ()
    breaks: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def model(self) -> str | None:
        """The model named by the body: in a form, the last part with that name."""
        kind = Message()
        kind["Content-Type"] = self.headers.get("Content-Type", "")
        boundary = kind.get_param("boundary")
        if isinstance(boundary, str):
            parts = self.body.split(b"--" + boundary.encode())
            named = [part for part in parts if b'name="model"' in part.partition(b"\r\n\r\n")[0]]
            return named[-1].partition(b"\r\n\r\n")[2].removesuffix(b"\r\n").decode() if named else None
        found = orjson.loads(self.body).get("model")
        return None if found is None else str(found)


def card(name: str, **more: Any) -> dict[str, Any]:
    """A model as vLLM lists it."""
    return {
        "id": name,
        "object": "model",
        "created": 1700000000,
        "owned_by": "vllm",
        "root": f"/models/{name}",
        "parent": None,
        "max_model_len": 4096,
        "permission": [{"id": "modelperm-1", "allow_sampling": True}],
        **more,
    }


def answer_of(name: str) -> Canned:
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    message = {"role": "assistant", "content": name}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    document = {"id": "1", "object": "chat.completion", "created": 1, "model": name, "choices": [choice]}
    return Canned(orjson.dumps(document | {"usage": usage}))


@dataclass
class CannedEngine:
    """Serves `models`, and `answers` by path, on the running event loop; everything else is vLLM's 404."""

    models: list[dict[str, Any]]
    answers: dict[str, Canned] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    lists: int = 0
    """Number of requests for its models."""
    health: int = 200
    url: str = ""
    _runner: web.ServerRunner | None = None

    async def start(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=0.1)
        await self._runner.setup()
        port = int(self.url.rpartition(":")[2] or 0)
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.path:
            case "/health":
                return web.Response(status=self.health)
            case "/v1/models":
                self.lists += 1
                return web.json_response({"object": "list", "data": self.models})
        canned = self.answers.get(request.path)
        if request.method != "POST" or canned is None:
            return _error(404, "Not Found", "Not Found")
        sent = Sent(request.path, dict(request.headers), await request.content.read())
        self.sent.append(sent)
        if sent.model is not None and sent.model not in {one["id"] for one in self.models}:
            return _error(404, f"The model `{sent.model}` does not exist.", "NotFoundError", "model")
        if not canned.events:
            return web.Response(body=canned.body, status=canned.status, content_type=canned.content_type)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in canned.events:
            await response.write(event)
        if canned.breaks and request.transport is not None:
            request.transport.abort()
        return response


def _error(status: int, message: str, kind: str, param: str | None = None) -> web.Response:
    error = {"message": message, "type": kind, "param": param, "code": status}
    return web.json_response({"error": error}, status=status)


def calls_of(replica: FakeReplica) -> int:
    """Calls that have an id: a fleet's own probes, which it sends after failures, have none."""
    calls = replica.report().calls
    return sum(times for id, times in calls.items() if not id.startswith("anonymous-"))
