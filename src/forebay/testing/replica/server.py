"""The HTTP server of the fake replica."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from forebay.records import Usage
from forebay.testing.answers import CHARS_PER_TOKEN
from forebay.testing.replica import wire
from forebay.testing.replica.asked import ParsedRequest, read_body
from forebay.testing.replica.wire import (
    EVENT_STREAM,
    Answered,
    break_off,
    choices_of,
    error_response,
    hang_up,
    json_response,
    read_number,
)
from forebay.testing.replica.work import (
    KvCaches,
    ReplicaWork,
    ReportedLoad,
    ScriptedPrefixCache,
    TokenBucket,
    WorkReport,
    kv_place,
    load_headers,
    metrics_text,
)
from forebay.testing.script import ANSWERS, STATUSES, CallReport, ReplicaScript

MAX_BODY_BYTES = 64 << 20
KEEPALIVE_S = 5.0
CHAT_PATH, PROMPT_PATH = "/v1/chat/completions", "/v1/completions"
METRICS_PATH = "/metrics"


class FakeReplica:
    """Serves `script` on the running event loop between `start` and `stop`.

    Besides vLLM's paths: `GET /_calls` (`CallReport`), `GET /_work` (`WorkReport`), `POST /_speed`
    (a factor), `POST /_refuse` (seconds in which every call gets 429).
    """

    def __init__(
        self, script: ReplicaScript | None = None, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.script = script or ReplicaScript()
        self.host = host
        self.port = port
        self._runner: web.ServerRunner | None = None
        self._slots = None if self.script.slots is None else asyncio.Semaphore(self.script.slots)
        self._work = ReplicaWork(slots=self.script.slots, crowding=self.script.crowding)
        self._bucket = TokenBucket(self.script.calls_per_s, self.script.calls_at_once)
        self._answered: set[str] = set()
        self._cache = ScriptedPrefixCache(self.script.block_chars, self.script.cache_blocks)
        self._calls: Counter[str] = Counter()
        self._waiting = 0
        self._running = 0
        self._max_in_flight = 0
        self._completed = 0
        self._aborted = 0
        self._totals: Counter[str] = Counter()
        self._kv = KvCaches()
        self._id_in_prompt = re.compile(self.script.id_in_prompt) if self.script.id_in_prompt else None
        self._refuses_until_s = 0.0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def start(self) -> None:
        server = web.Server(
            self._handle,
            request_factory=_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port, backlog=4096).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> FakeReplica:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def report(self) -> CallReport:
        return CallReport(
            calls=dict(self._calls),
            in_flight=self._running + self._waiting,
            max_in_flight=self._max_in_flight,
            completed=self._completed,
            aborted=self._aborted,
            kv_reads=dict(self._kv.reads),
        )

    def work(self) -> WorkReport:
        return WorkReport(
            self._work.speed,
            *self._work.times,
            answers=len(self._answered),
            calls=self._calls.total(),
            aborted=self._aborted,
            waiting=self._waiting,
            running=self._running,
        )

    @property
    def speed(self) -> float:
        """Factor of the script's speed; running requests continue at the new speed."""
        return self._work.speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._work.speed = speed

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if path in self.script.absent:
            return error_response(404, "Not Found", "NotFoundError")
        if path in (CHAT_PATH, PROMPT_PATH):
            if request.method != "POST":
                return error_response(405, "Method Not Allowed", "MethodNotAllowed")
            return await self._complete(request, chat=path == CHAT_PATH)
        match path:
            case "/v1/embeddings" if request.method == "POST":
                return await self._embed(request)
            case "/health" | "/ping":
                return web.Response()
            case "/v1/models":
                return self._unauthorized(request) or json_response(orjson.dumps(self._models()))
            case "/metrics":
                return web.Response(text=self._metrics(), content_type="text/plain")
            case "/version":
                return json_response(b'{"version":"0.0.0+fake"}')
            case "/_calls":
                return json_response(orjson.dumps(asdict(self.report())))
            case "/_work":
                return json_response(orjson.dumps(asdict(self.work())))
            case "/_speed" if request.method == "POST":
                return await self._set_speed(request)
            case "/_refuse" if request.method == "POST":
                return await self._refuse(request)
        return error_response(404, "Not Found", "NotFoundError")

    async def _complete(self, request: web.BaseRequest, *, chat: bool) -> web.StreamResponse:
        script = self.script
        refusal = self._unauthorized(request)
        if refusal is not None:
            return refusal
        try:
            asked = read_body(await request.read(), chat=chat, max_model_len=script.max_model_len)
        except ValueError as error:
            return error_response(400, str(error), "BadRequestError")
        if asked.model not in script.models:
            return error_response(404, f"The model `{asked.model}` does not exist.", "NotFoundError")
        id = self._id_of(request, asked)
        self._calls[id] += 1
        now_s = asyncio.get_running_loop().time()
        # From here on, vLLM reports to the owner of a KV cache that a request waits for it.
        stale = self._kv.read(asked, now_s=now_s)
        if now_s < self._refuses_until_s:
            return self._status(429)
        fault = script.faults.pick(id, asked.text, self._calls[id]) or ("schema" if stale else None)
        if fault in STATUSES:
            return self._status(int(fault))
        if fault == "too_long" or asked.prompt_tokens + asked.max_tokens > script.max_model_len:
            return error_response(400, wire.too_long(asked, script.max_model_len), "BadRequestError")
        wait_s = self._bucket.take(now_s)
        if wait_s:
            return self._status(429, wait_s)
        if script.max_calls is not None and self._waiting + self._running >= script.max_calls:
            return self._status(429)
        if script.max_queue is not None and self._waiting >= script.max_queue and self._full():
            return error_response(503, "the queue is full", "ServiceUnavailableError")
        self._waiting += 1
        self._max_in_flight = max(self._max_in_flight, self._running + self._waiting)
        try:
            if self._slots is not None:
                await self._slots.acquire()
        except asyncio.CancelledError:
            self._aborted += 1
            raise
        finally:
            self._waiting -= 1
        self._running += 1
        try:
            with self._work.running() as done:
                response = await self._answer(request, asked, id, fault)
                if fault is None or fault in ANSWERS:
                    self._completed += 1
                    if id not in self._answered:
                        self._answered.add(id)
                        done()
        except asyncio.CancelledError:
            self._aborted += 1
            raise
        except ConnectionError:
            self._aborted += 1
            hang_up(request)
            return web.Response()
        finally:
            self._running -= 1
            if self._slots is not None:
                self._slots.release()
        return response

    def _id_of(self, request: web.BaseRequest, asked: ParsedRequest) -> str:
        if self._id_in_prompt is not None and (found := self._id_in_prompt.search(asked.text)):
            return found[0]
        return request.headers.get("X-Request-Id") or f"anonymous-{self._calls.total()}"

    async def _set_speed(self, request: web.BaseRequest) -> web.Response:
        speed = await read_number(request)
        if speed is None:
            return error_response(400, "expected a speed of 0 or more", "BadRequestError")
        self.speed = speed
        return json_response(b"{}")

    async def _refuse(self, request: web.BaseRequest) -> web.Response:
        seconds = await read_number(request)
        if seconds is None:
            return error_response(400, "expected a number of seconds, 0 or more", "BadRequestError")
        self._refuses_until_s = asyncio.get_running_loop().time() + seconds
        return json_response(b"{}")

    async def _embed(self, request: web.BaseRequest) -> web.StreamResponse:
        refusal = self._unauthorized(request)
        if refusal is not None:
            return refusal
        try:
            body = wire.embeddings(await request.read(), self.script.models)
        except ValueError as error:
            return error_response(400, f"the body cannot be read: {error}", "BadRequestError")
        id = request.headers.get("X-Request-Id") or f"anonymous-{self._calls.total()}"
        self._calls[id] += 1
        await asyncio.sleep(self.script.delay(id))
        self._completed += 1
        return json_response(body, headers=self._load_headers(request))

    async def _answer(
        self, request: web.BaseRequest, asked: ParsedRequest, id: str, fault: str | None
    ) -> web.StreamResponse:
        script = self.script
        if fault == "hang":
            await asyncio.Event().wait()
        cached = self._cache.take(asked.text)
        if kv_place(asked) is not None:
            cached = len(asked.text)
        choices = choices_of(asked, fault)
        cached_tokens = min(cached // CHARS_PER_TOKEN, asked.prompt_tokens)
        usage = Usage(asked.prompt_tokens, sum(parts.tokens for parts in choices), cached_tokens)
        place = None
        if script.gives_kv_cache:
            until_s = asyncio.get_running_loop().time() + script.kv_lease_s
            place = self._kv.give(asked, self.url, until_s=until_s)
        answer = Answered(id, choices, usage, place)
        # Choices are decoded in parallel.
        decode_s = script.token_s * max(parts.tokens for parts in choices) + script.decode(id)
        first_s = script.delay(id) + script.prefill_s_per_char * (len(asked.text) - cached)
        # The duration depends on the request id, not on the attempt: a retry is not a new draw.
        streamed = asked.stream and script.streams
        await self._work.do(first_s if streamed else first_s + decode_s)
        if fault == "refuse":
            hang_up(request)
            return web.Response()
        if fault is not None and fault not in ANSWERS:
            return await break_off(request, asked, answer, fault)
        self._count(usage)
        if not streamed:
            return json_response(wire.document(asked, answer), headers=self._load_headers(request))
        headers = EVENT_STREAM
        if script.load_header_on_streams:
            headers = headers | self._load_headers(request)
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        pieces = list(wire.events(asked, answer, script.chunks))
        for piece in pieces[:-1]:
            await response.write(piece)
            await self._work.do(decode_s / max(1, len(pieces) - 1))
        if len(pieces) == 1:
            await self._work.do(decode_s)
        await response.write_eof(pieces[-1])
        return response

    def _status(self, status: int, retry_after_s: float | None = None) -> web.Response:
        wait_s = self.script.retry_after_s if retry_after_s is None else retry_after_s
        headers = {"Retry-After": f"{round(wait_s, 3):g}"} if status == 429 else None
        return error_response(status, f"scripted fault {status}", "ScriptedError", headers=headers)

    def _unauthorized(self, request: web.BaseRequest) -> web.Response | None:
        key = self.script.api_key
        if key is None or request.headers.get("Authorization") == f"Bearer {key}":
            return None
        return error_response(401, "Unauthorized", "AuthenticationError")

    def _full(self) -> bool:
        return self._slots is not None and self._slots.locked()

    def _count(self, usage: Usage) -> None:
        self._totals["request_success"] += 1
        self._totals["prompt_tokens"] += usage.prompt_tokens
        self._totals["generation_tokens"] += usage.completion_tokens
        if self.script.cache_blocks:
            self._totals["prefix_cache_queries"] += usage.prompt_tokens
            self._totals["prefix_cache_hits"] += usage.cached_tokens

    def _load(self) -> ReportedLoad:
        usage = min(1.0, self._running / (self.script.slots or 1024))
        return ReportedLoad(self._running, self._waiting, usage)

    def _load_headers(self, request: web.BaseRequest) -> dict[str, str]:
        asked = request.headers.get("endpoint-load-metrics-format", "").upper() == "TEXT"
        return load_headers(self._load()) if asked and METRICS_PATH not in self.script.absent else {}

    def _models(self) -> dict[str, Any]:
        length = self.script.max_model_len
        models = [
            {"id": name, "object": "model", "owned_by": "forebay", "max_model_len": length}
            for name in self.script.models
        ]
        return {"object": "list", "data": models}

    def _metrics(self) -> str:
        if self.script.metrics is not None:
            return self.script.metrics
        return metrics_text(
            self.script.models[0], self._load(), self._totals, kv_tokens=self.script.kv_tokens
        )


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)
