"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

import orjson

from forebay.clients.http.server import HttpClient
from forebay.clock import Clock, SystemClock
from forebay.engine.client import request_headers
from forebay.engine.failures import Redactor
from forebay.engine.load import LOAD_REQUEST_HEADER
from forebay.errors import Unreachable
from forebay.fleet.client import FleetClient
from forebay.gateway.access_log import AccessLog
from forebay.gateway.accounts import Accounts
from forebay.gateway.asgi import (
    PROVE,
    HungUp,
    Receive,
    Scope,
    Send,
    TimeLimit,
    TimeOver,
    UntilHungUp,
    forget_cancelling,
    headers_up,
    json_headers,
    request_id,
    send_whole,
)
from forebay.gateway.asked import with_model
from forebay.gateway.body import Room, drop_body, read_body
from forebay.gateway.body_reader import BodyReader
from forebay.gateway.connections import client_of
from forebay.gateway.cors import Cors, Hosts
from forebay.gateway.exchange import Exchange, RelayedCall, RelayRules
from forebay.gateway.keys import KeyRing, Usage
from forebay.gateway.models import Alias, ModelNames
from forebay.gateway.openapi import DESCRIPTION
from forebay.gateway.peak_load import PeakLoad
from forebay.gateway.prefill import Prefills
from forebay.gateway.protocol import LINGER_S
from forebay.gateway.refusal import (
    SERVER,
    Refusal,
    draining,
    out_of_time,
    own_mistake,
    wrong_host,
)
from forebay.gateway.relay import Cut, Relay, break_off
from forebay.gateway.routes import METHODS, MODEL_PATH, MODELS_PATH, MONITORING, OPEN, dialect_of, route_of
from forebay.gateway.spec import LimitsSpec
from forebay.gateway.telemetry import CONTENT_TYPE, GatewayMetrics, Monitoring, health_of
from forebay.gateway.tracing import RequestTrace, Tracing
from forebay.gateway.wire import OUT_OF_TIME, STOPPED

LOG = logging.getLogger("forebay.gateway")
ASK_FOR_LOAD = (LOAD_REQUEST_HEADER, "TEXT")
START_S = 5.0
DROPPED_BYTES = 65_536
"""Unread bodies up to this size are drained; above, the connection is closed."""


class Gateway:
    """Forwards calls to the replicas of `fleet`; those of `prefill` prefill the prompts.

    Use it on one event loop, from `open` to `close`.
    """

    def __init__(
        self,
        fleet: FleetClient,
        *,
        prefill: FleetClient | None = None,
        keys: KeyRing | None = None,
        aliases: Mapping[str, Alias] | None = None,
        limits: LimitsSpec | None = None,
        rules: RelayRules | None = None,
        tracing: Tracing | None = None,
        monitoring: Monitoring | None = None,
        access_log: AccessLog | None = None,
        cors: Cors | None = None,
        reader: BodyReader | None = None,
        hosts: Hosts | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._fleet = fleet
        self._prefill = prefill
        self._clock = clock or SystemClock()
        self.keys = keys or KeyRing((), self._clock.monotonic_s())
        self._limits = limits or LimitsSpec()
        self._rules = rules or RelayRules()
        self._hosts = hosts or Hosts()
        self._reader = reader or BodyReader()
        self._room = Room(self._limits.max_held_bytes)
        self._tracing = tracing or Tracing()
        self._monitoring = monitoring or Monitoring()
        self._models = ModelNames(fleet, aliases, absent_s=self._rules.absent_s)
        self._cors = cors or Cors()
        self._load = PeakLoad(self._clock)
        self._metrics = GatewayMetrics(fleet, self._load, prefill, access_log)
        self._accounts = Accounts(self._metrics, access_log, self._clock, names_keys=self._monitoring.closed)
        self._client = HttpClient(headers=request_headers(fleet.api_key), quote=Redactor(fleet.api_key))
        self._relay: Relay | None = None
        self.draining = False
        self.in_flight = 0
        self.idle = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1002})

    @property
    def model(self) -> str | None:
        return next((model.name for model in self._fleet.models), None)

    def drain(self) -> None:
        """Report draining on `/health` and answer new requests with 503. Those in flight continue."""
        self.draining = self._reader.draining = True

    async def open(self, wait_s: float = START_S) -> None:
        """Return when a replica takes requests, or after `wait_s` with a warning in the log.

        Raises `SettingError` if the list of replicas cannot be read, or if they serve no permitted model.
        """
        prefills = None
        if self._prefill is not None:
            self._prefill.watch()
            prefills = Prefills(self._prefill, self._client, self._rules, self._clock)
        self._relay = Relay(
            self._fleet,
            self._client,
            self._rules,
            self._clock,
            on_retry=lambda cause: self._metrics.retries.labels(cause).inc(),
            prefills=prefills,
        )
        self.idle.set()
        try:
            await self._fleet.start(wait_s)
        except Unreachable as error:
            LOG.warning("requests get a 503 until there is a replica: %s", error)

    async def close(self) -> None:
        await self._fleet.close()
        await self._reader.close()
        if self._prefill is not None:
            await self._prefill.close()
        await self._client.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._tracing.close)
        await loop.run_in_executor(None, self._accounts.close)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        exchange = Exchange(
            method=scope["method"],
            path=scope["path"],
            route=route_of(scope["path"]),
            headers=headers,
            raw=scope["headers"],
            id=request_id(headers),
            host=(scope.get("client") or ("",))[0],
            began_s=self._clock.monotonic_s(),
        )
        exchange.allowed_host = self._hosts.allow(headers.get(b"host"), (scope.get("server") or ("",))[0])
        exchange.id = exchange.id or exchange.engine_id
        exchange.prove = scope.get(PROVE, exchange.prove)
        path, method = exchange.route, exchange.method
        send = self._cors.sender(headers, send)
        here = self._monitoring.port is None or (path in MONITORING) == (
            scope["server"][1] == self._monitoring.port
        )
        if here and path in METHODS and self._cors.is_question(method, headers):
            await send_whole(send, 200, self._cors.permission(headers), b"")
        elif here and METHODS.get(path) == method:
            handle = self._open_route if path in OPEN else self._call
            await handle(exchange, receive, send)
        elif here and path in METHODS:
            refusal = Refusal(405, "method_not_allowed", f"{path} takes {METHODS[path]} only")
            allow = (b"allow", METHODS[path].encode())
            await self._refuse(exchange, refusal, receive, send, allow)
        else:
            message = f"there is no {method} {path[:200]}; /openapi.json lists all paths"
            await self._refuse(exchange, Refusal(404, "unknown_url", message), receive, send)

    async def _open_route(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        keys = self._monitoring.keys
        if keys is not None and exchange.path in MONITORING:
            try:
                keys.find(exchange.headers)
            except Refusal as refusal:
                await self._refuse(exchange, refusal, receive, send)
                return
            exchange.prove()
        elif not exchange.allowed_host:
            await self._refuse(exchange, wrong_host(), receive, send)
            return
        match exchange.path:
            case "/health":
                status, document = self.health()
                await send_whole(send, status, json_headers(), orjson.dumps(document))
            case "/metrics":
                await send_whole(send, 200, [(b"content-type", CONTENT_TYPE)], self._metrics.text())
            case _:
                await send_whole(send, 200, json_headers(), DESCRIPTION)

    def health(self) -> tuple[int, dict[str, object]]:
        waits = self._rules.absent_s == math.inf
        return health_of(
            self._fleet, self._prefill, draining=self.draining, in_flight=self.in_flight, waits=waits
        )

    async def _call(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        trace = self._tracing.begin(exchange)
        try:
            with TimeLimit(self._limits.request_s):
                await self._admit(exchange, receive, send, trace)
        except Refusal as refusal:
            await self._refuse(exchange, refusal, receive, send)
        except TimeOver:
            if exchange.begun:
                await self._cut(exchange, send, OUT_OF_TIME)
            else:
                late = out_of_time(self._limits.request_s, waited=exchange.waits, replicas=self._fleet.usable)
                LOG.warning("request %s: %s", exchange.id, late)
                await self._refuse(exchange, late, receive, send)
        except Cut:
            exchange.outcome = "cut"
        except HungUp:
            exchange.outcome = "hung_up"
        except asyncio.CancelledError:
            # The server stops before or during the answer.
            exchange.outcome = "cut"
            if exchange.begun:
                await self._cut(exchange, send, STOPPED)
                raise
            forget_cancelling()
            await self._refuse(exchange, draining(), receive, send)
        except Exception:
            LOG.exception("request %s failed by an error in the gateway", exchange.id)
            if exchange.begun:
                raise
            await self._refuse(exchange, own_mistake(), receive, send)
        finally:
            duration_s = self._clock.monotonic_s() - exchange.began_s
            self._accounts.ended(exchange, duration_s)
            self._tracing.end(trace, exchange, duration_s)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.in_flight += 1
        self.idle.clear()
        self._metrics.in_flight.set(self.in_flight)
        try:
            yield
        finally:
            self.in_flight -= 1
            self._metrics.in_flight.set(self.in_flight)
            if not self.in_flight:
                self.idle.set()

    async def _cut(self, exchange: Exchange, send: Send, why: str) -> None:
        exchange.outcome = "cut"
        LOG.warning("request %s: %s", exchange.id, why)
        call = exchange.call
        if call is not None and call.streamed:
            with suppress(TimeOver), TimeLimit(LINGER_S):
                await break_off(send, call, why)

    async def _admit(self, exchange: Exchange, receive: Receive, send: Send, trace: RequestTrace) -> None:
        if self.draining:
            raise draining()
        limits, clock = self._limits, self._clock
        caller = self.keys.find(exchange.headers)
        if self.keys.open:
            self._cors.check(exchange.headers)
            if not exchange.allowed_host:
                raise wrong_host()
        exchange.prove()
        exchange.key = caller.name
        free = limits.in_flight - self.in_flight - 1
        if free < 0 or (self.keys.shared and caller.usage.in_flight > free):
            # Without this limit one key could take all places.
            message = (
                f"more than {limits.in_flight} requests at a time, or too many with this key; try again later"
            )
            raise Refusal(503, "gateway_full", message, kind=SERVER, retry_after_s=1)
        with ExitStack() as held:
            held.enter_context(self._counted())
            held.enter_context(caller.usage.request(clock.monotonic_s()))
            take = held.enter_context(self._room.share(caller.name if self.keys.shared else None))
            if exchange.route in (MODELS_PATH, MODEL_PATH):
                await self._send_models(exchange, send)
                return
            body = await read_body(
                exchange.headers, receive, take, max_bytes=limits.max_body_bytes, within_s=limits.body_s
            )
            exchange.body_read = True
            content_type = exchange.headers.get(b"content-type", b"")
            source = client_of(exchange.host) if self.keys.open else caller.name
            async with UntilHungUp(receive):
                asked = await self._reader.read(
                    source,
                    exchange.route,
                    body,
                    max_depth=limits.max_json_depth,
                    content_type=content_type,
                    fields=self._rules.fields,
                    salt=caller.salt if self._rules.cache_salt else None,
                )
                # Numbers may be longer when they are written again.
                take(max(0, len(asked.body) - len(body)))
                del body
                exchange.model = asked.model or None
                headers = [
                    *headers_up(exchange.raw, self._rules.headers),
                    ("X-Request-Id", exchange.engine_id),
                    ASK_FOR_LOAD,
                ]
                held.enter_context(self._load.request())
                models = await self._models.resolve(asked.model, asked.session or exchange.id)
                for model in models:
                    last = model == models[-1]
                    if asked.model and model != asked.model:
                        take(len(asked.body))
                        asked = with_model(asked, model)
                    if self._prefill is not None and asked.transferable:
                        # The prefill has its own copy of the body.
                        take(len(asked.body))
                    call = exchange.call = RelayedCall(
                        asked, caller.name, exchange.id, headers, source, trace
                    )
                    if await self._answered(call, caller.usage, send, last=last):
                        exchange.outcome = str(call.status)
                        return

    async def _answered(self, call: RelayedCall, usage: Usage, send: Send, *, last: bool) -> bool:
        assert self._relay is not None
        asked = call.asked
        cost = asked.tokens(self._models.context(asked.model))
        taken = usage.tokens(cost, self._clock.monotonic_s(), self._clock.wall_ms())
        try:
            await self._relay.forward(call, send)
        except Refusal as refusal:
            if last or refusal.status < 502:
                raise
            LOG.warning("request %s goes to the fallback of its model: %s", call.id, refusal)
            self._metrics.retries.labels("fallback").inc()
            return False
        finally:
            usage.settle(taken, call.used_tokens(taken))
        return True

    async def _send_models(self, exchange: Exchange, send: Send) -> None:
        name = exchange.path.removeprefix(MODELS_PATH).removeprefix("/")
        document = await self._models.card(name) if name else self._models.listing()
        id = (b"x-request-id", exchange.id.encode("ascii"))
        await send_whole(send, 200, json_headers(id), orjson.dumps(document))
        exchange.outcome = "200"

    async def _refuse(
        self,
        exchange: Exchange,
        refusal: Refusal,
        receive: Receive,
        send: Send,
        *more: tuple[bytes, bytes],
    ) -> None:
        exchange.outcome, exchange.error = str(refusal.status), refusal.code
        self._metrics.refused.labels(refusal.code).inc()
        unread = exchange.unread
        refusal.close = refusal.close or unread > DROPPED_BYTES
        headers = [*refusal.headers(), (b"x-request-id", exchange.id.encode("ascii")), *more]
        lingers = unread > DROPPED_BYTES or refusal.status == 408
        body = refusal.body(anthropic=dialect_of(exchange.route) == "anthropic")
        await send_whole(send, refusal.status, headers, body, more=lingers)
        if lingers:
            await drop_body(receive, LINGER_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
