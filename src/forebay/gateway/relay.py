"""A request handed to a replica, and its answer handed back byte for byte."""

from __future__ import annotations

import asyncio
import io
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import aiohttp
from yarl import URL

from forebay.clock import Clock
from forebay.engine.client import transport_error
from forebay.engine.failures import Quoter, read_retry_after_s
from forebay.engine.load import LOAD_HEADER, parse_load_header
from forebay.errors import (
    AttemptTimeout,
    BadRequest,
    EngineError,
    Overloaded,
    ProtocolViolation,
    ServerFault,
    Unauthorized,
    Unreachable,
)
from forebay.fleet.client import FleetClient
from forebay.fleet.lease import ReplicaLease
from forebay.gateway.asgi import Send, TimeLimit, TimeOver, forget_cancelling, headers_down
from forebay.gateway.body import Asked
from forebay.gateway.refusal import SERVER, Refusal, error_body, no_replica
from forebay.records import Usage

LOG = logging.getLogger("forebay.gateway")

BUSY_STATUSES = frozenset((502, 503, 504))
"""Another replica may take what this one cannot take now."""
LARGE_BODY_BYTES = 1 << 20
"""The HTTP client writes larger bodies in pieces, if it is given a file."""
TAIL_BYTES = 4096
"""Where in an answer its count of tokens stands: in the last few bytes."""
PROMPT = re.compile(rb'"prompt_tokens" ?: ?([0-9]{1,9})')
COMPLETION = re.compile(rb'"completion_tokens" ?: ?([0-9]{1,9})')
CACHED = re.compile(rb'"cached_tokens" ?: ?([0-9]{1,9})')


@dataclass(frozen=True, slots=True)
class RelayRules:
    """`attempts`: replicas that one request is sent to at most. `first_byte_s`: how long a replica may take
    to begin a streamed answer; one that is not streamed has all the time of the request. `place_s`: how long
    a request waits for room; `absent_s`: and where no replica is up at all.
    """

    attempts: int = 3
    connect_s: float = 5.0
    first_byte_s: float = 120.0
    place_s: float = 30.0
    absent_s: float = 2.0


@dataclass(slots=True)
class RelayedCall:
    """One request on its way: who asks for what under which id, and how far the answer has come.

    `headers` are those that the replica gets. `status` and `begun_s` are set when the first byte is sent.
    `sent`: a replica has the request. `events`: of a streamed answer, so far. `usage`: what the answer was
    counted to cost, once it is whole.
    """

    asked: Asked
    tenant: str
    id: str
    headers: list[tuple[str, str]]
    replica: str = ""
    status: int = 0
    begun_s: float = math.nan
    streamed: bool = False
    sent: bool = False
    events: int = 0
    usage: Usage | None = None

    @property
    def begun(self) -> bool:
        """Whether the client has got a byte."""
        return self.status != 0

    def used_tokens(self, taken: float) -> float:
        """How many of the tokens that were `taken` for it the call has used: what the replica counted, of a
        stream that broke off what had come, and all where nobody knows."""
        prompt = self.asked.prompt_tokens
        if self.usage is not None:
            return (self.usage.prompt_tokens or prompt) + self.usage.completion_tokens
        if not self.sent or self.status >= 400:
            return 0
        return min(taken, prompt + self.events) if self.streamed else taken

    def begin(self, replica: str, status: int, now_s: float) -> None:
        self.replica, self.status, self.begun_s = replica, status, now_s


class Cut(Exception):
    """The replica broke off after its answer had begun; the client has been told as far as one can."""


class Relay:
    """Sends requests to the replicas of `fleet`. Belongs to the event loop that it is first used on.

    A request goes to another replica when one is out of reach, hangs, is busy or fails with a 500: only as
    long as the client has got no byte.
    """

    def __init__(
        self,
        fleet: FleetClient,
        session: aiohttp.ClientSession,
        rules: RelayRules,
        clock: Clock,
        on_retry: Callable[[str], None],
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._rules = rules
        self._clock = clock
        self._quote = Quoter(fleet.api_key)
        self._on_retry = on_retry

    async def forward(self, call: RelayedCall, send: Send) -> None:
        """Answer `call`. Raises `Refusal` where nothing was sent yet, `Cut` where the answer broke off."""
        tried: dict[str, int] = {}
        faults: list[tuple[ReplicaLease, EngineError]] = []
        asked, rules = call.asked, self._rules
        for attempt in range(1, rules.attempts + 1):
            demand = self._fleet.demand(
                asked.text,
                deadline_s=rules.place_s if self._others({}) else min(rules.absent_s, rules.place_s),
                tenant=call.tenant,
                session=asked.session,
                avoid=tuple(tried.values()),
            )
            last = attempt == rules.attempts
            failure: EngineError
            try:
                async with self._fleet.place(demand, chars=len(asked.text)) as lease:
                    if not asked.stream:
                        lease.whole()
                    with UntilLost(lease):
                        try:
                            response, first = await self._begin(lease, call, last=last or bool(tried))
                        except EngineError as error:
                            # Whose fault a 500 is shows when another replica is asked.
                            unclear = isinstance(error, ServerFault)
                            lease.failed(error, blame=not unclear)
                            if unclear:
                                faults.append((lease, error))
                            failure = error
                            tried[lease.url] = lease.number
                        else:
                            try:
                                await self._finish(lease, response, first, call, send)
                            except BaseException:
                                # What makes the replica drop the request is a closed connection.
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
                        await _say_broken_off(send)
                    raise Cut from None
            except Overloaded:
                call.sent = False
                raise no_replica("every replica is busy; try again later", retry_after_s=2.0) from None
            except Unreachable:
                call.sent = False
                raise no_replica("no replica is in reach; try again later") from None
            LOG.warning("request %s, attempt %d: %s", call.id, attempt, failure)
            if last or not (isinstance(failure, Unreachable) or self._others(tried)):
                break
            self._on_retry(failure.cause)
        call.sent = False
        raise _refusal_for(failure)

    def _others(self, tried: dict[str, int]) -> bool:
        return any(not why and url not in tried for url, why in self._fleet.replicas().items())

    async def _begin(
        self, lease: ReplicaLease, call: RelayedCall, *, last: bool
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """The replica's answer and its first bytes. Raises the `EngineError` of the cause.

        A 500 is an answer where it is the `last` attempt: what two replicas fail at lies in the request.
        """
        rules, body = self._rules, call.asked.body
        response: aiohttp.ClientResponse | None = None
        call.sent = True
        try:
            with TimeLimit(rules.first_byte_s if call.asked.stream else math.inf):
                response = await self._session.post(
                    URL(lease.url + call.asked.path, encoded=True),
                    data=body if len(body) <= LARGE_BODY_BYTES else io.BytesIO(body),
                    headers=call.headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=rules.connect_s),
                )
                failure = _failure_of(
                    lease.url, response, not last and self._others({lease.url: 0}), self._clock.wall_ms()
                )
                if failure is None:
                    return response, await response.content.readany()
        except TimeOver:
            failure = AttemptTimeout(f"{lease.url} did not begin to answer within {rules.first_byte_s:g} s")
        except asyncio.TimeoutError:
            failure = Unreachable(f"{lease.url} took no connection within {rules.connect_s:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = transport_error(error, replica=lease.url, quote=self._quote)
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
    ) -> None:
        """Send the answer as it comes."""
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
                # While the client does not read, the replica's silence is the client's.
                lease.quiet = True
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                if not whole and not refused:
                    lease.quiet = False
                    lease.progress()
                call.events += chunk.count(b"data:") if streamed else 0
                tail = chunk[-TAIL_BYTES:] if len(chunk) >= TAIL_BYTES else (tail + chunk)[-TAIL_BYTES:]
                chunk = await content.readany()
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
            failure = transport_error(error, replica=lease.url, quote=self._quote)
            lease.failed(failure)
            LOG.warning("request %s broke off: %s", call.id, failure)
            if streamed:
                await _say_broken_off(send)
            raise Cut from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        lease.load(parse_load_header(response.headers.get(LOAD_HEADER), observed_s=self._clock.monotonic_s()))
        if not refused:
            usage = usage_in(tail, max(0, call.events - 1))
            lease.done(usage)
            if streamed or PROMPT.search(tail):
                call.usage = usage
        elif response.status >= 500:
            lease.failed(ServerFault(f"{lease.url} answered {response.status}"), blame=False)
        else:
            lease.failed(BadRequest(f"{lease.url} answered {response.status}"))


async def _say_broken_off(send: Send) -> None:
    said = error_body("replica_failed", "the replica broke off its answer", kind=SERVER)
    await send({"type": "http.response.body", "body": b"\n\ndata: " + said + b"\n\n", "more_body": True})


class Lost(Exception):
    """The replica is considered stalled."""


class UntilLost:
    """Within it, the current task ends with `Lost` once the replica of `lease` is considered stalled."""

    __slots__ = ("_lease",)

    def __init__(self, lease: ReplicaLease) -> None:
        self._lease = lease

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None

        def end() -> None:
            task.cancel()

        self._lease.on_lost = end
        if self._lease.lost:
            end()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease.lost and kind is asyncio.CancelledError:
            forget_cancelling()
            raise Lost(self._lease.lost) from None


def usage_in(tail: bytes, events: int) -> Usage:
    """The counts at the end of an answer; without them, its events are its tokens."""
    prompt, completion, cached = (_last(pattern, tail) for pattern in (PROMPT, COMPLETION, CACHED))
    return Usage(prompt or 0, events if completion is None else completion, cached or 0)


def _last(pattern: re.Pattern[bytes], tail: bytes) -> int | None:
    found = pattern.findall(tail)
    return int(found[-1]) if found else None


def _failure_of(url: str, response: aiohttp.ClientResponse, others: bool, now_ms: int) -> EngineError | None:
    """Why this is no answer to hand on; None where it is one."""
    status = response.status
    said = f"{url} answered {status}"
    if status in BUSY_STATUSES:
        return Overloaded(
            said, retry_after_s=read_retry_after_s(response.headers.get("Retry-After"), now_ms=now_ms)
        )
    if status in (401, 403):
        return Unauthorized(f"{said}; check the engine's API key")
    if 300 <= status < 400:
        return ProtocolViolation(f"{said}: redirects are not followed; give the final URL")
    if status == 500 and others:
        return ServerFault(said)
    return None


def _refusal_for(failure: EngineError) -> Refusal:
    """What the client is told once all attempts have failed; names no replica."""
    if isinstance(failure, AttemptTimeout):
        return Refusal(504, "replica_timeout", "no replica began to answer in time", kind=SERVER)
    if isinstance(failure, Overloaded):
        wait_s = failure.retry_after_s or 2.0
        return no_replica("every replica that was asked is busy; try again later", retry_after_s=wait_s)
    if isinstance(failure, Unauthorized):
        message = "the replica refuses the gateway; whoever runs the gateway must mend its engine settings"
        return Refusal(502, "replica_refused", message, kind=SERVER)
    return Refusal(502, "replica_failed", "the replica could not be reached or broke off", kind=SERVER)
