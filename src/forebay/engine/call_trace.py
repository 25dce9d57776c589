"""What one request leaves for its event's trace: how it was routed, and its calls. Without OpenTelemetry.

`CALL_TRACE` is set in the task of a request that is traced. Times are monotonic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import nan
from random import getrandbits
from types import TracebackType

from forebay.clock import Clock
from forebay.errors import EngineError
from forebay.records import Completion, Request

CANCELLED = "cancelled"


@dataclass(slots=True)
class Route:
    """The wait for a replica with room. `why`: what the choice was based on, as numbers and names."""

    since_s: float
    until_s: float = nan
    replica: str = ""
    why: Mapping[str, str | int | float] = field(default_factory=dict)
    error: str = ""

    def placed(self, until_s: float, replica: str, why: Mapping[str, str | int | float]) -> None:
        self.until_s, self.replica, self.why = until_s, replica, why


@dataclass(slots=True)
class Call:
    """A context manager around one call of one replica."""

    url: str
    request: Request
    clock: Clock
    span_id: int
    sent_s: float
    streamed: bool
    phase: str
    headers: tuple[tuple[str, str], ...]
    """By which the replica continues the trace."""
    done_s: float = nan
    completion: Completion | None = None
    error: str = ""

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done_s = self.clock.monotonic_s()
        if error is not None:
            self.error = _cause_of(error)


class CallTrace:
    """Belongs to one event loop until `done_s` is set. `state`: the trace's `tracestate` header, if any."""

    __slots__ = (
        "_state",
        "_traceparent",
        "began_s",
        "done_s",
        "journaled",
        "phase",
        "steps",
        "submitted_s",
    )

    def __init__(self, trace_id: int, *, sampled: bool, state: str, submitted_s: float) -> None:
        self._traceparent = f"00-{trace_id:032x}-%016x-{'01' if sampled else '00'}"
        self._state = state
        self.submitted_s = submitted_s
        self.began_s = self.done_s = nan
        self.journaled = False
        self.phase = ""
        """`prefill` while a prompt is prefilled at another replica than the one that decodes."""
        self.steps: list[Route | Call] = []

    def route(self, since_s: float) -> Route:
        made = Route(since_s)
        self.steps.append(made)
        return made

    def call(self, url: str, request: Request, clock: Clock, *, streamed: bool) -> Call:
        span_id = getrandbits(64) or 1
        headers = [("traceparent", self._traceparent % span_id)]
        if self._state:
            headers.append(("tracestate", self._state))
        made = Call(url, request, clock, span_id, clock.monotonic_s(), streamed, self.phase, tuple(headers))
        self.steps.append(made)
        return made

    def failed(self, cause: str, now_s: float) -> None:
        """The newest call was given up, or its answer rejected; or no replica had room."""
        if not self.steps:
            return
        step = self.steps[-1]
        if isinstance(step, Call):
            if step.error in ("", CANCELLED):
                step.error = cause
        elif step.until_s != step.until_s:
            step.until_s, step.error = now_s, cause


CALL_TRACE: ContextVar[CallTrace | None] = ContextVar("call_trace", default=None)


def _cause_of(error: BaseException) -> str:
    if isinstance(error, EngineError):
        return error.cause
    return CANCELLED if isinstance(error, asyncio.CancelledError) else type(error).__name__
