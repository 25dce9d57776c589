"""Sends a request to a replica and returns its answer byte for byte."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

import aiohttp

from forebay.clock import Clock
from forebay.engine.client import MAX_ERROR_BYTES, transport_error
from forebay.engine.failures import Redactor, read_retry_after_s
from forebay.engine.load import LOAD_HEADER, parse_load_header
from forebay.errors import (
    AttemptTimeout,
    BadRequest,
    EngineError,
    ModelNotFound,
    Overloaded,
    ProtocolViolation,
    RateLimited,
    ServerFault,
    Unauthorized,
    Unreachable,
)
from forebay.fleet.client import FleetClient
from forebay.fleet.lease import ReplicaLease
from forebay.gateway.asgi import Send, TimeLimit, headers_down
from forebay.gateway.asked import Asked
from forebay.gateway.attempt import Attempt
from forebay.gateway.call import RelayedCall, RelayRules
from forebay.gateway.prefill import Prefills, decode_body
from forebay.gateway.refusal import SERVER, Refusal, no_replica, no_route, unknown_model
from forebay.gateway.replica import FAILED, TAIL_BYTES, Lost, UntilLost, failure_from, post
from forebay.gateway.routes import dialect_of
from forebay.gateway.usage import counts_in
from forebay.gateway.wire import BROKEN_OFF, broken_off, missing_in
from forebay.records import Usage

LOG = logging.getLogger("forebay.gateway")

BUSY_STATUSES = frozenset((502, 503, 504))
"""Another replica may take the request."""
REFUSED_STATUSES = (401, 403)


class Cut(Exception):
    """The replica broke off its answer; the client was notified if possible."""


class Relay:
    """Sends requests to the replicas of `fleet`. Belongs to the event loop of its first use.

    A request moves to another replica if one is unreachable, hangs, is busy or answers 500, until the client
    has got a byte.

    With `prefills`, a request gets a place at a replica, its prompt is prefilled elsewhere, and the replica
    takes over the KV cache without delay. A KV cache is read once: a second attempt prefills where it
    decodes.
    """

    def __init__(
        self,
        fleet: FleetClient,
        session: aiohttp.ClientSession,
        rules: RelayRules,
        clock: Clock,
        *,
        on_retry: Callable[[str], None],
        prefills: Prefills | None = None,
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._rules = rules
        self._clock = clock
        self._quote = Redactor(fleet.api_key)
        self._on_retry = on_retry
        self._prefills = prefills

    async def forward(self, call: RelayedCall, send: Send) -> None:
        """Answer `call`. Raises `Refusal` if nothing was sent yet, `Cut` if the answer broke off."""
        tried: dict[str, int] = {}
        faults: list[tuple[ReplicaLease, EngineError]] = []
        asked, rules = call.asked, self._rules
        for number in range(1, rules.attempts + 1):
            prefills = self._prefills_for(call, first=number == 1)
            demand = self._fleet.demand(
                asked.text,
                deadline_s=rules.place_s if self._others({}, asked) else min(rules.absent_s, rules.place_s),
                tenant=call.tenant,
                session=asked.session,
                avoid=tuple(tried.values()),
                transferred=prefills is not None,
                model=asked.model or None,
            )
            last, body = number == rules.attempts, asked.body
            failure: EngineError
            call.waits = True
            try:
                async with self._fleet.place(demand, chars=len(asked.text), source=call.source) as lease:
                    call.waits = False
                    if prefills is not None:
                        with UntilLost(lease):
                            body = await self._prefilled(prefills, lease, call, faults)
                    with call.trace.attempt(asked, lease.url) as attempt, UntilLost(lease):
                        if not asked.stream:
                            lease.whole()
                        try:
                            response, first = await self._begin(
                                lease, call, body, attempt=attempt, last=last or bool(tried)
                            )
                        except EngineError as error:
                            attempt.failed(error.cause)
                            # A 500 may be the request's fault: another replica shows it. A replica may have
                            # been refused the KV cache that it was to take over.
                            unclear = isinstance(error, ServerFault | ModelNotFound)
                            lease.failed(error, blame=not unclear)
                            if isinstance(error, ServerFault) and body is asked.body:
                                faults.append((lease, error))
                            failure = error
                            tried[lease.url] = lease.number
                        else:
                            try:
                                await self._finish(lease, response, first, call, send, attempt=attempt)
                            except BaseException:
                                # Only a closed connection makes the replica drop the request.
                                response.close()
                                raise
                            if response.status < 400:
                                for failed, fault in faults:
                                    failed.mark_failed(fault)
                            return
            except Lost as lost:
                failure = AttemptTimeout(str(lost))
                tried[lease.url] = lease.number
                if call.begun:
                    if call.streamed:
                        await break_off(send, call)
                    raise Cut from None
            except Overloaded as full:
                call.sent = False
                LOG.warning("request %s: %s", call.id, full)
                raise no_replica(f"{full}; try again later", retry_after_s=2.0) from None
            except Unreachable as gone:
                call.sent = False
                LOG.warning("request %s: %s", call.id, gone)
                raise no_replica("no replica is reachable; try again later") from None
            LOG.warning("request %s, attempt %d: %s", call.id, number, failure)
            again = isinstance(failure, Unreachable) or body is not asked.body or self._others(tried, asked)
            if last or not again:
                break
            self._on_retry(failure.cause)
        call.sent = False
        raise _refusal_for(failure, asked.model)

    def _others(self, tried: dict[str, int], asked: Asked) -> bool:
        replicas = self._fleet.replicas(asked.model or None)
        return any(not why and url not in tried for url, why in replicas.items())

    def _prefills_for(self, call: RelayedCall, *, first: bool) -> Prefills | None:
        """The prefill replicas; None, with the reason in the call, if the same replica prefills."""
        prefills, asked = self._prefills, call.asked
        if prefills is None or not asked.answers:
            return None
        if not asked.transferable:
            call.handover = "unsuitable"
        elif not first:
            call.handover = "decode_failed"
        elif prefills.none_works(asked.model):
            call.handover = "no_server"
        else:
            return prefills
        return None

    async def _prefilled(
        self,
        prefills: Prefills,
        lease: ReplicaLease,
        call: RelayedCall,
        faults: list[tuple[ReplicaLease, EngineError]],
    ) -> bytes:
        """The body for `lease`: with the KV cache, or the client's own if the prefill failed. `faults`
        receives replicas that failed, maybe by the request's fault.
        """
        lease.awaits_prompt()
        found = await prefills.prefill(call)
        lease.prompt_came()
        faults.extend(found.faults)
        call.handover = found.handover
        body = call.asked.body
        return body if found.kv_transfer is None else decode_body(body, found.kv_transfer)

    async def _begin(
        self, lease: ReplicaLease, call: RelayedCall, body: bytes, *, attempt: Attempt, last: bool
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """The replica's answer and its first bytes. Raises `EngineError`. In the `last` attempt a 500 is an
        answer: if two replicas fail, the request is to blame.
        """
        rules, handed_over = self._rules, body is not call.asked.body
        response: aiohttp.ClientResponse | None = None
        call.sent = True
        try:
            with TimeLimit(rules.first_byte_s if call.asked.stream else math.inf):
                response = await post(
                    self._session, lease.url, call, body, attempt, connect_s=rules.connect_s
                )
                others = not last and (handed_over or self._others({lease.url: 0}, call.asked))
                failure = _failure_of(lease.url, response, others, self._clock.wall_ms())
                if failure is None or (
                    response.status in REFUSED_STATUSES and not others and await self._fleet.accepts(lease)
                ):
                    first = await response.content.readany()
                    if response.status != 404:
                        return response, first
                    first = await _rest(response, first)
                    missing = missing_in(first)
                    if missing == "route":
                        response.close()
                        call.sent = False
                        raise no_route(call.asked.path, call.asked.model)
                    if missing != "model" or not others:
                        return response, first
                    failure = ModelNotFound(f"{lease.url} no longer serves {call.asked.model!r}")
        except FAILED as error:
            failure = failure_from(error, lease.url, rules, self._quote)
        except asyncio.CancelledError:
            if response is not None:
                response.close()
            raise
        if response is not None:
            response.close()
        raise failure

    async def _finish(
        self,
        lease: ReplicaLease,
        response: aiohttp.ClientResponse,
        first: bytes,
        call: RelayedCall,
        send: Send,
        *,
        attempt: Attempt,
    ) -> None:
        whole, refused = not call.asked.stream, response.status >= 400
        lease.unseen = False
        if not whole and not refused:
            lease.progress()
        call.streamed = response.content_type == "text/event-stream"
        headers = headers_down(response.raw_headers)
        headers.append((b"x-request-id", call.id.encode("ascii")))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        call.begin(lease.url, response.status, self._clock.monotonic_s())
        streamed = call.streamed
        content = response.content
        chunk, tail = first, b""
        try:
            while chunk:
                # The client does not read, so the replica's silence does not mean a stall.
                lease.quiet = True
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                events = chunk.count(b"data:") if streamed else 0
                if not whole and not refused:
                    lease.quiet = False
                    lease.progress(max(1, events))
                call.events += events
                tail = chunk[-TAIL_BYTES:] if len(chunk) >= TAIL_BYTES else (tail + chunk)[-TAIL_BYTES:]
                chunk = await content.readany()
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
            failure = transport_error(error, replica=lease.url, quote=self._quote)
            lease.failed(failure)
            attempt.failed(failure.cause)
            LOG.warning("request %s broke off: %s", call.id, failure)
            if streamed:
                await break_off(send, call)
            raise Cut from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        in_json = streamed or response.content_type == "application/json"
        attempt.answered(response.status, *((first, tail) if in_json else ()))
        lease.load(parse_load_header(response.headers.get(LOAD_HEADER), observed_s=self._clock.monotonic_s()))
        if not refused and not call.asked.costs:
            # A call without computation does not measure the speed of the engine.
            lease.release()
        elif not refused:
            # Other answers, such as a transcript, can hold any text of the client's.
            counted = counts_in(tail) if in_json else None
            usage = counted or Usage(0, max(0, call.events - 1), 0)
            lease.done(usage)
            if streamed or counted is not None:
                call.usage, call.counted = usage, counted is not None
        elif response.status >= 500:
            lease.failed(ServerFault(f"{lease.url} answered {response.status}"), blame=False)
        elif response.status == 404 and missing_in(first) == "model":
            # Makes the fleet query its models again.
            lease.failed(ModelNotFound(f"{lease.url} no longer serves {call.asked.model!r}"), blame=False)
        else:
            lease.failed(BadRequest(f"{lease.url} answered {response.status}"))


async def _rest(response: aiohttp.ClientResponse, first: bytes) -> bytes:
    while len(first) < MAX_ERROR_BYTES and (more := await response.content.readany()):
        first += more
    return first


async def break_off(send: Send, call: RelayedCall, why: str = BROKEN_OFF) -> None:
    body = broken_off(dialect_of(call.asked.path), call.events, why)
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _failure_of(url: str, response: aiohttp.ClientResponse, others: bool, now_ms: int) -> EngineError | None:
    """Why this response is an error of the replica; None if it can be forwarded."""
    status = response.status
    said = f"{url} answered {status}"
    if status in BUSY_STATUSES or status == 429:
        kind = RateLimited if status == 429 else Overloaded
        return kind(
            said, retry_after_s=read_retry_after_s(response.headers.get("Retry-After"), now_ms=now_ms)
        )
    if status in REFUSED_STATUSES:
        return Unauthorized(f"{said}; check the engine's API key")
    if 300 <= status < 400:
        return ProtocolViolation(f"{said}: redirects are not followed; give the final URL")
    if status == 500 and others:
        return ServerFault(said)
    return None


def _refusal_for(failure: EngineError, model: str) -> Refusal:
    """The client's error after all attempts have failed; names no replica."""
    if isinstance(failure, ModelNotFound):
        return unknown_model(model)
    if isinstance(failure, AttemptTimeout):
        return Refusal(504, "replica_timeout", "no replica began to answer in time", kind=SERVER)
    if isinstance(failure, Overloaded | RateLimited):
        wait_s = failure.retry_after_s or 2.0
        message = "every replica rejects further requests for now; try again later"
        if isinstance(failure, RateLimited):
            return Refusal(429, "rate_limited", message, kind=SERVER, retry_after_s=wait_s)
        return no_replica(message, retry_after_s=wait_s)
    if isinstance(failure, Unauthorized):
        message = "the replica rejects the gateway; the gateway's operator must fix its engine settings"
        return Refusal(502, "replica_refused", message, kind=SERVER)
    return Refusal(502, "replica_failed", "the replica could not be reached or broke off", kind=SERVER)
