"""Sends a request to a replica and returns its answer byte for byte."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from forebay.clients.http.readers import EVENT_STREAM, JSON, AnswerHead, PulledAnswer
from forebay.clients.http.server import HttpClient
from forebay.clock import Clock
from forebay.engine.completion_reader import MAX_ERROR_BYTES
from forebay.engine.load import LOAD_HEADER, parse_load_header
from forebay.errors import (
    AttemptTimeout,
    BadRequest,
    EngineError,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ServerFault,
    Unreachable,
)
from forebay.fleet.client import FleetClient
from forebay.fleet.lease import ReplicaLease
from forebay.gateway.asgi import Send, TimeLimit, TimeOver, headers_down
from forebay.gateway.asked import Asked
from forebay.gateway.exchange import RelayedCall, RelayRules
from forebay.gateway.prefill import Prefills, decode_body
from forebay.gateway.refusal import no_replica, no_route, refusal_for
from forebay.gateway.replica import (
    REFUSED_STATUSES,
    TAIL_BYTES,
    Lost,
    StreamPace,
    UntilLost,
    failure_of,
    post,
    slow_start,
)
from forebay.gateway.routes import dialect_of
from forebay.gateway.tracing import Attempt
from forebay.gateway.wire import BROKEN_OFF, UsageFilter, broken_off, counts_in, missing_in
from forebay.records import Usage

LOG = logging.getLogger("forebay.gateway")


class Cut(Exception): ...


@dataclass(slots=True)
class Tries:
    """A request on its way, from replica to replica.

    `body`: for the current replica, the client's own or with the KV cache that it takes over. `number`: of
    the current try. `replicas`: numbers of those tried, by URL. `faults`: those that answered 500, maybe by
    the request's fault.
    """

    call: RelayedCall
    send: Send
    body: bytes
    number: int = 0
    replicas: dict[str, int] = field(default_factory=dict)
    faults: list[tuple[ReplicaLease, EngineError]] = field(default_factory=list)

    @property
    def takes_over(self) -> bool:
        return self.body is not self.call.asked.body


@dataclass(frozen=True, slots=True)
class BegunAnswer:
    response: PulledAnswer
    first: bytes

    @property
    def head(self) -> AnswerHead:
        return self.response.answer_head

    @property
    def streamed(self) -> bool:
        return self.head.content_type == EVENT_STREAM

    @property
    def refused(self) -> bool:
        return self.head.status >= 400


class Relay:
    """Sends requests to the replicas of `fleet`. Belongs to the event loop of its first use.

    A request moves to another replica if one is unreachable, hangs, is busy or answers 500, until the client
    has got a byte.

    With `prefills`, a request gets a place at a replica, its prompt is prefilled elsewhere, and the replica
    takes over the KV cache. A KV cache is read once: a second attempt prefills where it decodes.
    """

    def __init__(
        self,
        fleet: FleetClient,
        client: HttpClient,
        rules: RelayRules,
        clock: Clock,
        *,
        on_retry: Callable[[str], None],
        prefills: Prefills | None = None,
    ) -> None:
        self._fleet = fleet
        self._client = client
        self._rules = rules
        self._clock = clock
        self._on_retry = on_retry
        self._prefills = prefills

    async def forward(self, call: RelayedCall, send: Send) -> None:
        """Answer `call`. Raises `Refusal` if nothing was sent yet, `Cut` if the answer broke off."""
        tries = Tries(call, send, call.asked.body)
        while (failure := await self._try_next(tries)) is not None:
            LOG.warning("request %s, attempt %d: %s", call.id, tries.number, failure)
            if not self._may_try_again(tries, failure):
                call.sent = False
                raise refusal_for(failure, call.asked.model)
            self._on_retry(failure.cause)

    async def _try_next(self, tries: Tries) -> EngineError | None:
        call = tries.call
        tries.number, tries.body = tries.number + 1, call.asked.body
        prefills = self._prefills_for(call, first=tries.number == 1)
        call.waits = True
        try:
            async with self._place(tries, transferred=prefills is not None) as lease:
                call.waits = False
                tries.replicas[lease.url] = lease.number
                if prefills is not None:
                    await self._prefill(prefills, lease, tries)
                return await self._answer(lease, tries)
        except Lost as lost:
            if not call.begun:
                return AttemptTimeout(str(lost))
            if call.streamed:
                await break_off(tries.send, call)
            raise Cut from None
        except (Overloaded, Unreachable) as no_place:
            call.sent = False
            LOG.warning("request %s: %s", call.id, no_place)
            if isinstance(no_place, Overloaded):
                raise no_replica(f"{no_place}; try again later", retry_after_s=2.0) from None
            raise no_replica("no replica is reachable; try again later") from None

    def _may_try_again(self, tries: Tries, failure: EngineError) -> bool:
        if tries.number == self._rules.attempts:
            return False
        return (
            # The fleet has learned how many calls a replica takes, so this one waits for its turn.
            isinstance(failure, Unreachable | RateLimited)
            or tries.takes_over
            or self._others(tries.replicas, tries.call.asked)
        )

    def _place(self, tries: Tries, *, transferred: bool) -> AbstractAsyncContextManager[ReplicaLease]:
        call, asked, rules = tries.call, tries.call.asked, self._rules
        demand = self._fleet.demand(
            asked.text,
            deadline_s=rules.place_s if self._others({}, asked) else min(rules.absent_s, rules.place_s),
            tenant=call.tenant,
            session=asked.session,
            avoid=tuple(tries.replicas.values()),
            transferred=transferred,
            model=asked.model or None,
        )
        return self._fleet.place(demand, chars=len(asked.text), source=call.source)

    def _others(self, tried: dict[str, int], asked: Asked) -> bool:
        replicas = self._fleet.replicas(asked.model or None)
        return any(not why and url not in tried for url, why in replicas.items())

    def _prefills_for(self, call: RelayedCall, *, first: bool) -> Prefills | None:
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

    async def _prefill(self, prefills: Prefills, lease: ReplicaLease, tries: Tries) -> None:
        call = tries.call
        with UntilLost(lease):
            lease.await_prompt()
            found = await prefills.prefill(call)
            lease.prompt_arrived()
        tries.faults.extend(found.faults)
        call.handover = found.handover
        if found.kv_transfer is not None:
            tries.body = decode_body(call.asked.body, found.kv_transfer)

    async def _answer(self, lease: ReplicaLease, tries: Tries) -> EngineError | None:
        asked = tries.call.asked
        with tries.call.trace.attempt(asked, lease.url) as attempt, UntilLost(lease):
            if not asked.stream:
                lease.non_streaming()
            try:
                answer = await self._begin(lease, tries, attempt)
            except EngineError as error:
                attempt.failed(error.cause)
                _report_failure(lease, tries, error)
                return error
            try:
                await self._finish(lease, answer, tries, attempt)
            except BaseException:
                # Only a closed connection makes the replica drop the request.
                answer.response.close()
                raise
            if not answer.refused:
                for failed, fault in tries.faults:
                    failed.mark_failed(fault)
            return None

    async def _begin(self, lease: ReplicaLease, tries: Tries, attempt: Attempt) -> BegunAnswer:
        rules, call = self._rules, tries.call
        response: PulledAnswer | None = None
        call.sent = True
        try:
            with TimeLimit(rules.first_byte_s if call.asked.stream else math.inf):
                response = await post(
                    self._client, lease.url, call, tries.body, attempt, connect_s=rules.connect_s
                )
                return BegunAnswer(response, await self._first_bytes(lease, response, tries))
        except BaseException as error:
            if response is not None:
                response.close()
            if isinstance(error, TimeOver):
                raise slow_start(lease.url, rules.first_byte_s) from None
            raise

    async def _first_bytes(self, lease: ReplicaLease, response: PulledAnswer, tries: Tries) -> bytes:
        asked, head = tries.call.asked, response.answer_head
        # If two replicas answer 500, the request is to blame: the second answer is the client's.
        final = tries.number > 1 or tries.number == self._rules.attempts
        others = not final and (tries.takes_over or self._others({lease.url: 0}, asked))
        failure = failure_of(lease.url, head, others, self._clock.wall_ms())
        if failure is not None and (
            head.status not in REFUSED_STATUSES or others or not await self._fleet.accepts(lease)
        ):
            raise failure
        first = await response.read_any()
        if head.status != 404:
            return first
        first = await _rest(response, first)
        missing = missing_in(first)
        if missing == "route":
            tries.call.sent = False
            raise no_route(asked.path, asked.model)
        if missing == "model" and others:
            raise ModelNotFound(f"{lease.url} no longer serves {asked.model!r}")
        return first

    async def _finish(self, lease: ReplicaLease, answer: BegunAnswer, tries: Tries, attempt: Attempt) -> None:
        call, send, head = tries.call, tries.send, answer.head
        counted = call.asked.stream and not answer.refused
        lease.metrics_only = False
        if counted:
            lease.progress()
        call.streamed = answer.streamed
        headers = headers_down(head.headers)
        if answer.streamed:
            # The gateway may remove the counts, or add an error.
            headers = [header for header in headers if header[0] != b"content-length"]
        headers.append((b"x-request-id", call.id.encode("ascii")))
        await send({"type": "http.response.start", "status": head.status, "headers": headers})
        call.begin(lease.url, head.status, self._clock.monotonic_s())
        try:
            tail = await self._stream(lease, answer, tries, counted=counted)
        except EngineError as failure:
            lease.failed(failure)
            attempt.failed(failure.cause)
            LOG.warning("request %s broke off: %s", call.id, failure)
            if answer.streamed:
                await break_off(send, call)
            raise Cut from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        in_json = answer.streamed or head.content_type == JSON
        attempt.answered(head.status, *((answer.first, tail) if in_json else ()))
        lease.load(parse_load_header(head.get(LOAD_HEADER), observed_s=self._clock.monotonic_s()))
        if answer.refused:
            _report_rejection(lease, answer, call)
        else:
            # Other answers, such as a transcript, can hold any text of the client's.
            _report_usage(lease, answer, call, tail if in_json else b"")

    async def _stream(
        self, lease: ReplicaLease, answer: BegunAnswer, tries: Tries, *, counted: bool
    ) -> bytes:
        chunk, tail = answer.first, b""
        pace = StreamPace()
        hidden = UsageFilter() if answer.streamed and tries.call.asked.hides_usage else None
        while chunk:
            # The client does not read, so the replica's silence does not mean a stall.
            lease.ignore_silence = True
            body = chunk if hidden is None else hidden.pass_on(chunk)
            if body:
                await tries.send({"type": "http.response.body", "body": body, "more_body": True})
            events = chunk.count(b"data:") if answer.streamed else 0
            if answer.streamed and (wait_s := pace.wait_s(len(chunk), self._clock.monotonic_s())):
                await asyncio.sleep(wait_s)
            if counted:
                lease.ignore_silence = False
                lease.progress(max(1, events))
            tries.call.events += events
            tail = chunk[-TAIL_BYTES:] if len(chunk) >= TAIL_BYTES else (tail + chunk)[-TAIL_BYTES:]
            chunk = await answer.response.read_any()
        if hidden is not None and (rest := hidden.rest()):
            await tries.send({"type": "http.response.body", "body": rest, "more_body": True})
        return tail


def _report_failure(lease: ReplicaLease, tries: Tries, error: EngineError) -> None:
    # A 500 may be the request's fault: another replica shows it. A replica may have been refused the KV
    # cache that it was to take over.
    unclear = isinstance(error, ServerFault | ModelNotFound)
    lease.failed(error, blame=not unclear)
    if isinstance(error, ServerFault) and not tries.takes_over:
        tries.faults.append((lease, error))


def _report_usage(lease: ReplicaLease, answer: BegunAnswer, call: RelayedCall, tail: bytes) -> None:
    if not call.asked.costs:
        # A call without computation does not measure the speed of the engine.
        lease.release()
        return
    counted = counts_in(tail)
    usage = counted or Usage(0, max(0, call.events - 1), 0)
    lease.done(usage)
    if answer.streamed or counted is not None:
        call.usage, call.counted = usage, counted is not None


def _report_rejection(lease: ReplicaLease, answer: BegunAnswer, call: RelayedCall) -> None:
    status = answer.head.status
    if status >= 500:
        lease.failed(ServerFault(f"{lease.url} answered {status}"), blame=False)
    elif status == 404 and missing_in(answer.first) == "model":
        # Makes the fleet query its models again.
        lease.failed(ModelNotFound(f"{lease.url} no longer serves {call.asked.model!r}"), blame=False)
    else:
        lease.failed(BadRequest(f"{lease.url} answered {status}"))


async def _rest(response: PulledAnswer, first: bytes) -> bytes:
    while len(first) < MAX_ERROR_BYTES and (more := await response.read_any()):
        first += more
    return first


async def break_off(send: Send, call: RelayedCall, why: str = BROKEN_OFF) -> None:
    body = broken_off(dialect_of(call.asked.path), call.events, why)
    await send({"type": "http.response.body", "body": body, "more_body": True})
