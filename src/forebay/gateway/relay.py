"""A request handed to a replica, and its answer handed back byte for byte."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from yarl import URL

from forebay.clock import Clock
from forebay.engine.client import transport_error
from forebay.engine.failures import Quoter
from forebay.engine.load import LOAD_HEADER, LOAD_REQUEST_HEADER, parse_load_header
from forebay.errors import AttemptTimeout, EngineError, Overloaded, Unauthorized, Unreachable
from forebay.gateway.asgi import RawHeaders, Send
from forebay.gateway.body import Asked
from forebay.gateway.guard import TimeLimit, TimeOver
from forebay.gateway.headers import headers_down
from forebay.gateway.refusal import SERVER, Refusal, error_body, no_replica
from forebay.gateway.upstream import Lease, Upstream

LOG = logging.getLogger("forebay.gateway")

BUSY_STATUSES = frozenset((502, 503, 504))
"""Another replica may take what this one cannot take now."""
LARGE_BODY_BYTES = 1 << 20
"""The HTTP client writes larger bodies in pieces, if it is given a file."""
TAIL_BYTES = 4096
"""Where in an answer its count of tokens stands: in the last few bytes."""
COMPLETION_TOKENS = re.compile(rb'"completion_tokens" ?: ?([0-9]{1,9})')


@dataclass(frozen=True, slots=True)
class RelayRules:
    """`attempts`: replicas that one request is sent to at most. `first_byte_s`: how long a replica may take
    to begin a streamed answer; one that is not streamed has all the time of the request.
    """

    attempts: int = 3
    connect_s: float = 5.0
    first_byte_s: float = 120.0
    place_s: float = 60.0


class Cut(Exception):
    """The replica broke off after its answer had begun; the client has been told as far as one can."""


class Relay:
    """Sends requests to the replicas of `upstream`. Belongs to the event loop that it is first used on.

    A request goes to another replica when one is out of reach, busy or does not begin to answer: only as long
    as the client has got no byte.
    """

    def __init__(
        self,
        upstream: Upstream,
        session: aiohttp.ClientSession,
        rules: RelayRules,
        clock: Clock,
        *,
        quote: Quoter,
        on_retry: Callable[[str], None],
    ) -> None:
        self._upstream = upstream
        self._session = session
        self._rules = rules
        self._clock = clock
        self._quote = quote
        self._on_retry = on_retry

    async def forward(
        self,
        asked: Asked,
        *,
        tenant: str,
        id: str,
        headers: list[tuple[str, str]],
        send: Send,
        on_begin: Callable[[str, int], None],
    ) -> None:
        """Answer `asked`. `on_begin` is called with the replica and its status when the first byte is sent.

        Raises `Refusal` where nothing was sent yet, `Cut` where the answer broke off.
        """
        headers = [*headers, ("X-Request-Id", id), (LOAD_REQUEST_HEADER, "TEXT")]
        avoid: frozenset[str] = frozenset()
        for attempt in range(1, self._rules.attempts + 1):
            try:
                place = self._upstream.place(
                    asked, tenant=tenant, avoid=avoid, within_s=self._rules.place_s
                )
                async with place as lease:
                    try:
                        response, first = await self._begin(lease, asked, headers)
                    except EngineError as error:
                        lease.failed(error)
                        failure: EngineError = error
                        avoid |= {lease.url}
                    else:
                        try:
                            await self._finish(lease, response, first, id, send, on_begin)
                        except BaseException:
                            # What makes the replica drop the request is a closed connection.
                            response.close()
                            raise
                        return
            except Overloaded as error:
                raise no_replica("every replica is busy; try again later", retry_after_s=2.0) from error
            except Unreachable as error:
                raise no_replica("no replica is in reach; try again later") from error
            LOG.warning("request %s, attempt %d: %s", id, attempt, failure)
            if attempt < self._rules.attempts:
                self._on_retry(failure.cause)
        raise _refusal_for(failure)

    async def _begin(
        self, lease: Lease, asked: Asked, headers: list[tuple[str, str]]
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """The replica's answer and its first bytes. Raises the `EngineError` of the cause.

        The answer to a busy replica's last attempt is an answer too: it says why.
        """
        rules = self._rules
        body = asked.body if len(asked.body) <= LARGE_BODY_BYTES else io.BytesIO(asked.body)
        response: aiohttp.ClientResponse | None = None
        try:
            with TimeLimit(rules.first_byte_s if asked.stream else float("inf")):
                response = await self._session.request(
                    asked.method,
                    URL(lease.url + asked.path, encoded=True),
                    data=body or None,
                    headers=headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=rules.connect_s),
                )
                status = response.status
                if status in BUSY_STATUSES:
                    raise Overloaded(f"{lease.url} answered {status}")
                if status in (401, 403) or 300 <= status < 400:
                    raise Unauthorized(f"{lease.url} answered {status}; check the engine's URL and API key")
                return response, await response.content.readany()
        except TimeOver:
            failure: EngineError = AttemptTimeout(
                f"{lease.url} did not begin to answer within {rules.first_byte_s:g} s"
            )
        except EngineError as error:
            failure = error
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
        lease: Lease,
        response: aiohttp.ClientResponse,
        first: bytes,
        id: str,
        send: Send,
        on_begin: Callable[[str, int], None],
    ) -> None:
        """Send the answer as it comes."""
        lease.first_byte()
        raw: RawHeaders = [(name, value) for name, value in response.raw_headers]
        headers = headers_down(raw)
        headers.append((b"x-request-id", id.encode("ascii")))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        on_begin(lease.url, response.status)
        chunk, events, tail = first, 0, b""
        streamed = response.content_type == "text/event-stream"
        content = response.content
        try:
            while chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                events += chunk.count(b"data:") if streamed else 0
                tail = chunk[-TAIL_BYTES:] if len(chunk) >= TAIL_BYTES else (tail + chunk)[-TAIL_BYTES:]
                chunk = await content.readany()
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
            failure = transport_error(error, replica=lease.url, quote=self._quote)
            lease.failed(failure)
            LOG.warning("request %s broke off: %s", id, failure)
            if streamed:
                said = error_body("replica_failed", "the replica broke off its answer", kind=SERVER)
                await send(
                    {"type": "http.response.body", "body": b"\n\ndata: " + said + b"\n\n", "more_body": True}
                )
            raise Cut from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        counted = COMPLETION_TOKENS.findall(tail)
        load = parse_load_header(
            response.headers.get(LOAD_HEADER), observed_s=self._clock.monotonic_s()
        )
        lease.finished(int(counted[-1]) if counted else max(0, events - 1), load)


def _refusal_for(failure: EngineError) -> Refusal:
    """What the client is told once all attempts have failed; names no replica."""
    if isinstance(failure, AttemptTimeout):
        return Refusal(504, "replica_timeout", "no replica began to answer in time", kind=SERVER)
    if isinstance(failure, Overloaded):
        return no_replica("every replica that was asked is busy; try again later", retry_after_s=2.0)
    if isinstance(failure, Unauthorized):
        message = "the replica refuses the gateway; whoever runs the gateway must mend its engine settings"
        return Refusal(502, "replica_refused", message, kind=SERVER)
    return Refusal(502, "replica_failed", "the replica could not be reached or broke off", kind=SERVER)
