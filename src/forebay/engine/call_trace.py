"""How one request was routed, and its calls, for its event's trace. Without OpenTelemetry.

Times are monotonic.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from math import nan
from random import getrandbits
from typing import NamedTuple

from forebay.records import Completion, Request


class RouteReasons(NamedTuple):
    """Why a request got its replica. `replicas`: those available; `avoided`: at how many it had failed;
    `requests`: those at the replica, with this one; `expected_s`: until all prompts there should be
    prefilled.
    """

    replica: str
    policy: str
    replicas: int
    avoided: int
    requests: int
    prompt_tokens: int
    uncached_tokens: float
    expected_s: float


@dataclass(slots=True)
class Route:
    """The wait for a replica with room. `why` None: none had."""

    since_s: float
    until_s: float = nan
    why: RouteReasons | None = None
    error: str = ""


@dataclass(slots=True)
class Call:
    url: str
    request: Request
    sent_s: float
    streamed: bool
    phase: str
    span_id: int
    headers: tuple[tuple[str, str], ...]
    completion: Completion | None = None
    error: str = ""
    until_s: float = nan

    def answered(self, completion: Completion) -> Completion:
        self.completion, self.until_s = completion, completion.timing.done_s
        return completion


class CallTrace:
    """Belongs to one event loop until `done_s` is set. `state`: the trace's `tracestate` header, if any."""

    __slots__ = (
        "_more",
        "_traceparent",
        "began_s",
        "done_s",
        "journaled",
        "phase",
        "steps",
        "submitted_s",
    )

    def __init__(self, trace_id: int, *, sampled: bool, state: str, submitted_s: float) -> None:
        self._traceparent = f"00-{trace_id:032x}-%016x-0{sampled:d}"
        self._more = (("tracestate", state),) if state else ()
        self.submitted_s = submitted_s
        self.began_s = self.done_s = nan
        self.journaled = False
        self.phase = ""
        self.steps: list[Route | Call] = []

    def route(self, since_s: float) -> Route:
        made = Route(since_s)
        self.steps.append(made)
        return made

    def call(self, url: str, request: Request, sent_s: float, *, streamed: bool) -> Call:
        span_id = getrandbits(64) or 1
        headers = (("traceparent", self._traceparent % span_id), *self._more)
        made = Call(url, request, sent_s, streamed, self.phase, span_id, headers)
        self.steps.append(made)
        return made

    def failed(self, cause: str, now_s: float) -> None:
        if not self.steps:
            return
        step = self.steps[-1]
        if step.error or (isinstance(step, Route) and step.why is not None):
            return
        step.error = cause
        if isinstance(step, Route) or step.completion is None:
            step.until_s = now_s


CALL_TRACE: ContextVar[CallTrace | None] = ContextVar("call_trace", default=None)
