"""One request at one replica, from its placement to its end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from forebay.clock import Clock
from forebay.engine.call_trace import RouteReasons
from forebay.engine.replica import ReplicaEngine
from forebay.engine.retry import names_time
from forebay.errors import (
    AttemptTimeout,
    EngineError,
    ModelNotFound,
    Overloaded,
    ProtocolViolation,
    RateLimited,
    ServerFault,
    Unauthorized,
    Unreachable,
)
from forebay.fleet.health import PATIENCE
from forebay.fleet.replica import NON_STREAMING, Replica
from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.routing_request import InFlightRequest
from forebay.records import ReplicaLoad, Usage

REPLICAS_FAULT = (Unreachable, Overloaded, RateLimited, AttemptTimeout, ServerFault, ProtocolViolation)
MISPLACED = (Unauthorized, ModelNotFound)
MIN_TIMEOUT_S = 1.0
FULL = (Overloaded, RateLimited)


class ReplicaLease:
    """The right to send one request to one replica now.

    The holder reports `first_token` once, `progress` whenever bytes arrive, then one of `done`, `failed` and
    `release`. Later reports are ignored. Belongs to the client's event loop.
    """

    def __init__(
        self,
        replica: Replica,
        request: InFlightRequest,
        fleet: ReplicaTable,
        clock: Clock,
        changed: Callable[[ReplicaLease], None],
        *,
        blocks: Sequence[int] = (),
        source: str | None = None,
    ) -> None:
        self._replica = replica
        self._request = request
        self._fleet = fleet
        self._clock = clock
        self._changed = changed
        self.source = source
        self.epoch = replica.health.epoch
        self._own_s = fleet.queued_s(request.replica)
        self._claimed_s = replica.claimed_s
        self._credible_s = replica.credible_s
        self._began = False
        self._one_piece = False
        self._works = False
        self.sent_s = self.moved_s = request.sent_s
        self.overtaken_s = math.nan
        self.timeout_s = math.inf
        self._first_s = math.nan
        self._there = int(fleet.requests[request.replica])
        self._refused_before = replica.refusals.seen
        self.blocks = blocks
        self.ended = False
        self.lost = ""
        """Why the answer should be given up; empty if it should not."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when `lost` is set: end the call and place the request again."""
        self.usage: Usage | None = None
        self.ignore_silence = False
        self.metrics_only = False
        """Set while an answer in one piece is awaited: only metrics show that the replica works."""
        replica.sent(self, request.sent_s)

    @property
    def url(self) -> str:
        return self._replica.url

    @property
    def number(self) -> int:
        return self._request.replica

    @property
    def engine(self) -> ReplicaEngine:
        return self._replica.connection.engine

    def why(self, policy: str, available: int, avoided: int) -> RouteReasons:
        request = self._request
        return RouteReasons(
            self.url,
            policy,
            available,
            avoided,
            self._there,
            request.prompt_tokens,
            request.uncached,
            self._own_s,
        )

    def first_token(self) -> None:
        if self.begun or self.ended:
            return
        now_s = self._clock.monotonic_s()
        waiting = int(self._fleet.waiting[self.number])
        if not self._began:
            self._began = True
            self._fleet.first_token(self._request, now_s)
        self._first_s = now_s
        self._replica.first_token(
            self, now_s, there=self._there, waiting=waiting, own_s=self._own_s, claimed_s=self._claimed_s
        )
        self._changed(self)

    def non_streaming(self) -> None:
        """Expect the answer in one piece; its first token is assumed at the expected time."""
        self.ignore_silence = self.metrics_only = self._one_piece = True
        asyncio.get_running_loop().call_later(self._own_s, self.set_aside)

    def await_prompt(self) -> None:
        """Keep the place while another replica prefills the prompt. Silence and the time to first token are
        ignored.
        """
        self.ignore_silence = True
        self.set_aside()

    def prompt_arrived(self) -> None:
        now_s = self._clock.monotonic_s()
        self.ignore_silence = False
        self.sent_s = self.moved_s = self._request.first_token_s = now_s
        self.overtaken_s = math.nan
        self._replica.sent_again(self)

    def set_aside(self) -> None:
        if not self._began and not self.ended:
            self._began = True
            self._fleet.assume_first_token(self._request, self._clock.monotonic_s())
            if self._one_piece:
                self._worked_on()
            self._changed(self)

    def _worked_on(self) -> bool:
        news = not self._works
        if news:
            self._works = True
            self._replica.works_on()
        return news

    @property
    def begun(self) -> bool:
        return not math.isnan(self._first_s)

    def progress(self, tokens: int = 1) -> None:
        if not self.begun:
            self.first_token()
            return
        first = not self.ended and self._worked_on()
        if self._replica.tokens(self, tokens, self._clock.monotonic_s(), first=first):
            self._changed(self)

    def load(self, load: ReplicaLoad | None) -> None:
        if load is not None and not self.ended:
            self._replica.report(load, None, self._clock.monotonic_s())

    def done(self, usage: Usage | None = None) -> None:
        if not self.ended:
            self.usage = usage
            now_s = self._clock.monotonic_s()
            self._replica.answered(
                self,
                now_s,
                there=int(self._fleet.requests[self.number]),
                first=not self.begun,
                non_streaming=not self._first_s - self.sent_s < NON_STREAMING * (now_s - self.sent_s),
            )
            self._end(now_s, 0 if usage is None else usage.completion_tokens)

    def failed(self, error: EngineError, *, blame: bool = True, alone: bool = False) -> None:
        """Report a failure. It is not held against the replica if the request caused it, or without `blame`.

        A replica that is `alone` is shut only after many more failures: a few bad records must not block all
        others.
        """
        if self.ended:
            return
        now_s = self._clock.monotonic_s()
        health = self._replica.health
        in_flight = len(self._replica.leases) - 1
        if isinstance(error, FULL):
            against = self._replica.refused(error, self._others(), self.sent_s, now_s, self.source)
            # If there is no other replica, it gets requests again after the time it named, and is not shut.
            if against and (not alone or (blame and not names_time(error))):
                self._blame(error, now_s, in_flight=in_flight, alone=alone)
        elif isinstance(error, MISPLACED):
            if blame:
                self._blame(error, now_s, at_least_s=0.0)
                self._replica.must_describe = True
        elif isinstance(error, REPLICAS_FAULT):
            if blame and not self._excused(error, now_s):
                self._blame(error, now_s, in_flight=in_flight, at_least_s=error.retry_after_s, alone=alone)
        else:
            health.succeeded(self.epoch, now_s, first=not self.begun)
        self._end(now_s)

    def _blame(
        self,
        error: EngineError,
        now_s: float,
        *,
        in_flight: int = 0,
        at_least_s: float | None = None,
        alone: bool = False,
    ) -> None:
        self._replica.health.failed(
            self.epoch,
            str(error),
            now_s,
            in_flight=in_flight,
            at_least_s=at_least_s,
            alone=alone,
            source=self.source,
        )

    def late(self) -> None:
        if not self.ended:
            self._replica.missed(self.sent_s, self._clock.monotonic_s())

    def mark_failed(self, error: EngineError) -> None:
        self._replica.health.failed(self.epoch, str(error), self._clock.monotonic_s())
        self._changed(self)

    def release(self) -> None:
        if not self.ended:
            self._end(self._clock.monotonic_s())

    def overdue(self, now_s: float, here_since_s: float) -> tuple[float, bool]:
        return self._replica.progress.overdue(self, begun=self.begun, now_s=now_s, here_since_s=here_since_s)

    def mark_stalled(self, why: str) -> None:
        if not self.ended:
            self.lost = why
            self.on_lost()

    def _others(self) -> int:
        """How many other requests the replica may have held when it refused this one: the earlier ones not
        refused since, or the present ones, since calls overtake each other.
        """
        refused = self._replica.refusals.seen - self._refused_before
        return max(self._there - refused, int(self._fleet.requests[self.number])) - 1

    def _excused(self, error: EngineError, now_s: float) -> bool:
        if not isinstance(error, AttemptTimeout) or self.lost:
            return False
        due_s = max(MIN_TIMEOUT_S, PATIENCE * (self._own_s + self._credible_s))
        return self._began or now_s - self.sent_s < due_s

    def _end(self, now_s: float, output_tokens: int = 0) -> None:
        self.ended = True
        self._fleet.finish(self._request, now_s, output_tokens)
        self._replica.ended(self, now_s, worked_on=self._works)
        self._changed(self)
