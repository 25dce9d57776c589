"""One call of a replica: sends it, classifies its failure, stops on a stall."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

from forebay.clients.http.readers import AnswerHead, PulledAnswer
from forebay.clients.http.server import HttpClient
from forebay.engine.failures import Redactor, describe_redirect, read_retry_after_s
from forebay.errors import (
    AttemptTimeout,
    EngineError,
    Overloaded,
    ProtocolViolation,
    RateLimited,
    ServerFault,
    Unauthorized,
)
from forebay.fleet.lease import ReplicaLease
from forebay.gateway.asgi import cancellings, forget_cancelling
from forebay.gateway.exchange import RelayedCall
from forebay.gateway.tracing import Attempt

TAIL_BYTES = 4096
"""Token counts are in the last bytes of an answer."""
BUSY_STATUSES = frozenset((502, 503, 504))
REFUSED_STATUSES = (401, 403)


STREAM_BYTES_PER_S = 2 << 20
"""Far more than tokens with all their log probabilities."""
STREAM_BURST_BYTES = 256 << 10


class StreamPace:
    """Limits the processor time of an endless answer: a token bucket of `STREAM_BURST_BYTES`."""

    def __init__(self) -> None:
        self._due_s = -math.inf

    def wait_s(self, size: int, now_s: float) -> float:
        earliest_s = now_s - STREAM_BURST_BYTES / STREAM_BYTES_PER_S
        self._due_s = max(self._due_s, earliest_s) + size / STREAM_BYTES_PER_S
        return max(0.0, self._due_s - now_s)


async def post(
    client: HttpClient, url: str, call: RelayedCall, body: bytes, attempt: Attempt, *, connect_s: float
) -> PulledAnswer:
    return await client.server(url).open_post(
        call.asked.path,
        body,
        headers=[*call.headers, *attempt.headers],
        connect_s=connect_s,
        # A KV cache is made once and read once.
        again=body is call.asked.body,
    )


def slow_start(url: str, first_byte_s: float) -> EngineError:
    return AttemptTimeout(f"{url} did not begin to answer within {first_byte_s:g} s")


def failure_of(url: str, head: AnswerHead, others: bool, now_ms: int) -> EngineError | None:
    """Why this answer is an error of the replica; None if it can be forwarded."""
    status = head.status
    detail = f"{url} answered {status}"
    if status in BUSY_STATUSES or status == 429:
        kind = RateLimited if status == 429 else Overloaded
        return kind(detail, retry_after_s=read_retry_after_s(head.get("Retry-After"), now_ms=now_ms))
    if status in REFUSED_STATUSES:
        return Unauthorized(f"{detail}; check the engine's API key")
    if 300 <= status < 400:
        return ProtocolViolation(f"{detail}, {describe_redirect(url, head.get('Location'), Redactor())}")
    if status == 500 and others:
        return ServerFault(detail)
    return None


class Lost(Exception): ...


class UntilLost:
    """Ends the current task in the block with `Lost` if the replica of `lease` is considered stalled."""

    __slots__ = ("_before", "_ended", "_lease")

    def __init__(self, lease: ReplicaLease) -> None:
        self._lease = lease
        self._before = 0
        self._ended = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._before = cancellings()

        def end() -> None:
            # It may be called twice.
            if not self._ended:
                self._ended = True
                task.cancel()

        self._lease.on_lost = end
        if self._lease.lost:
            end()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended and forget_cancelling(self._before) and kind is asyncio.CancelledError:
            raise Lost(self._lease.lost) from None
