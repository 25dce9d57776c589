"""One request at one replica, from the moment it is placed until it ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from forebay.clock import Clock
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
from forebay.fleet.member import WHOLE, Member
from forebay.fleet.routing_request import ReplicaCharge
from forebay.fleet.state import Fleet
from forebay.records import ReplicaLoad, Usage

REPLICAS_FAULT = (Unreachable, Overloaded, RateLimited, AttemptTimeout, ServerFault, ProtocolViolation)
MISPLACED = (Unauthorized, ModelNotFound)
"""The replica is not what it was taken for; another may be."""
LEAST_TIMEOUT_S = 1.0
"""A call that was given less time than this says nothing of the replica."""
FULL = (Overloaded, RateLimited)
"""What says that there were too many requests."""


class ReplicaLease:
    """The right to send one request to one replica now.

    Its holder tells what happens: `first_token` once, `progress` as often as bytes come, then exactly one of
    `done`, `failed` and `release`; what comes after the end is passed over. Belongs to the client's loop.
    """

    def __init__(
        self,
        member: Member,
        ticket: ReplicaCharge,
        fleet: Fleet,
        clock: Clock,
        changed: Callable[[ReplicaLease], None],
        *,
        blocks: Sequence[int] = (),
        source: str | None = None,
    ) -> None:
        self._member = member
        self._ticket = ticket
        self._fleet = fleet
        self._clock = clock
        self._changed = changed
        self._source = source
        self.epoch = member.health.epoch
        self._own_s = fleet.queued_s(ticket.replica)
        self._claimed_s = member.claimed_s
        self._believed_s = member.believed_s
        self._counted = False
        self._began = False
        self._one_piece = False
        self._works = False
        self.sent_s = self.moved_s = ticket.sent_s
        self.passed_s = math.nan
        self.timeout_s = math.inf
        """For how long there may be no progress on it; its holder may set it."""
        self._first_s = math.nan
        self._there = int(fleet.requests[ticket.replica])
        self._refused_before = member.refusals.seen
        self.blocks = blocks
        """The prefix blocks of its prompt."""
        self.ended = False
        self.lost = ""
        """Why no answer is to be awaited any more; empty while one is."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when `lost` is set: end the call, and place the request anew."""
        self.usage: Usage | None = None
        self.quiet = False
        """Set while silence says nothing of the replica."""
        self.unseen = False
        """Set while an answer in one piece is awaited: only metrics can show that the replica works."""
        member.leases.add(self)
        member.progress.sent(self)
        member.sent(ticket.sent_s)
        member.used(blocks, ticket.sent_s)

    @property
    def url(self) -> str:
        """The replica's URL, without `/v1`."""
        return self._member.url

    @property
    def number(self) -> int:
        """The replica's number, for `RoutingRequest.avoid`."""
        return self._ticket.replica

    @property
    def engine(self) -> ReplicaEngine:
        """A client of the replica, for requests that are read whole."""
        return self._member.engine

    def first_token(self) -> None:
        """The first content has come."""
        if self.begun or self.ended:
            return
        now_s = self._clock.monotonic_s()
        waited_s = now_s - self.sent_s
        member = self._member
        waiting = int(self._fleet.waiting[self.number])
        if not self._began:
            self._began = True
            self._fleet.first_token(self._ticket, now_s)
        self._first_s = now_s
        member.progress.began(self, now_s)
        self._counted = True
        member.health.succeeded(self.epoch, now_s, whole=False)
        member.reports.first_token(self._claimed_s, self._own_s, waited_s)
        member.began(self._there, waiting, self.sent_s, now_s)
        member.tell(self._fleet)
        self._changed(self)

    def whole(self) -> None:
        """The answer comes in one piece. Its first token is taken to come when it is expected to."""
        self.quiet = self.unseen = self._one_piece = True
        asyncio.get_running_loop().call_later(self._own_s, self._assume_first_token)

    def awaits_prompt(self) -> None:
        """Another replica prefills the prompt until `prompt_came`: there is a place for it here, but silence
        says nothing, and neither does its first token of how fast this replica prefills."""
        self.quiet = True
        self._assume_first_token()

    def prompt_came(self) -> None:
        """The request is sent now."""
        now_s = self._clock.monotonic_s()
        self.quiet = False
        self.sent_s = self.moved_s = self._ticket.first_token_s = now_s
        self.passed_s = math.nan
        self._member.progress.ended(self)
        self._member.progress.sent(self)

    def _assume_first_token(self) -> None:
        if not self._began and not self.ended:
            self._began = True
            self._fleet.assume_first_token(self._ticket, self._clock.monotonic_s())
            if self._one_piece:
                self._worked_on()
            self._changed(self)

    def _worked_on(self) -> bool:
        """It is being worked on; gives whether that is news."""
        news = not self._works
        if news:
            self._works = True
            self._member.working += 1
        return news

    @property
    def begun(self) -> bool:
        """Whether something of its answer has come."""
        return not math.isnan(self._first_s)

    def set_aside(self) -> None:
        """It waits for its first token no longer than others do: it is not what keeps others from theirs."""
        self._assume_first_token()

    def progress(self, tokens: int = 1) -> None:
        """Some bytes of the answer came, about so many tokens: the replica lives. The first ones count as
        the first token."""
        if not self.begun:
            self.first_token()
            return
        now_s = self._clock.monotonic_s()
        member, gap_s = self._member, now_s - self.moved_s
        member.progress.went_on(self, now_s)
        member.health.sign(now_s)
        if not self.ended:
            window = member.running.limit
            member.flowed(self.sent_s, gap_s, now_s, first=self._worked_on(), tokens=tokens)
            if member.running.limit != window:
                member.tell(self._fleet)
                self._changed(self)

    def load(self, load: ReplicaLoad | None) -> None:
        """The answer's load header, where it had one."""
        if load is not None and not self.ended:
            self._member.heard(self._fleet, load, None, self._clock.monotonic_s())

    def done(self, usage: Usage | None = None) -> None:
        """The answer is complete; `usage` as the replica counted it."""
        if not self.ended:
            self.usage = usage
            now_s = self._clock.monotonic_s()
            self._member.sign(now_s)
            self._member.health.succeeded(self.epoch, now_s, first=not self._counted)
            whole = not self._first_s - self.sent_s < WHOLE * (now_s - self.sent_s)
            there = int(self._fleet.requests[self.number])
            self._member.answered(there, self.sent_s, now_s, whole=whole)
            self._member.tell(self._fleet)
            self._end(now_s, 0 if usage is None else usage.completion_tokens)

    def failed(self, error: EngineError, *, blame: bool = True, alone: bool = False) -> None:
        """The call failed. What lies in the request is not held against the replica, nor without `blame`.

        A replica that is `alone` is given up after many more failures: there is no other place to go, and a
        few records at which it fails must not keep all others from it.
        """
        if self.ended:
            return
        now_s = self._clock.monotonic_s()
        health = self._member.health
        in_flight = len(self._member.leases) - 1
        if isinstance(error, FULL):
            against = self._member.refused(error, self._others(), self.sent_s, now_s)
            self._member.tell(self._fleet)
            # With no other place to go, it is asked again when it said, and not shut for longer.
            if against and (not alone or (blame and not names_time(error))):
                self._blame(error, now_s, in_flight=in_flight, alone=alone)
        elif isinstance(error, MISPLACED):
            if blame:
                self._blame(error, now_s, at_least_s=0.0)
                self._member.doubtful = True
        elif isinstance(error, REPLICAS_FAULT):
            if blame and not self._excused(error, now_s):
                self._blame(error, now_s, in_flight=in_flight, at_least_s=error.retry_after_s, alone=alone)
        else:
            health.succeeded(self.epoch, now_s, first=not self._counted)
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
        self._member.health.failed(
            self.epoch,
            str(error),
            now_s,
            in_flight=in_flight,
            at_least_s=at_least_s,
            alone=alone,
            source=self._source,
        )

    def late(self) -> None:
        """Its time is over: the replica had too many of them."""
        if not self.ended:
            self._member.running.missed(self.sent_s, self._clock.monotonic_s())
            self._member.tell(self._fleet)

    def mark_failed(self, error: EngineError) -> None:
        """After a failure without blame: another replica has done what this one failed at, with `error`."""
        self._member.health.failed(self.epoch, str(error), self._clock.monotonic_s())
        self._changed(self)

    def release(self) -> None:
        """Nobody wants the answer any more."""
        if not self.ended:
            self._end(self._clock.monotonic_s())

    def overdue(self, now_s: float, here_since_s: float) -> tuple[float, bool]:
        """As `Progress` has it."""
        return self._member.progress.overdue(self, begun=self.begun, now_s=now_s, here_since_s=here_since_s)

    def mark_stalled(self, why: str) -> None:
        """The replica hangs, or left this request lying: tells the holder."""
        if not self.ended:
            self.lost = why
            self.on_lost()

    def _others(self) -> int:
        """How many others the replica may have held when it refused this one: those that were sent before and
        were not refused since, or those that are there now. Calls overtake each other on their way.
        """
        refused = self._member.refusals.seen - self._refused_before
        return max(self._there - refused, int(self._fleet.requests[self.number])) - 1

    def _excused(self, error: EngineError, now_s: float) -> bool:
        """Whether a call ran out of time because it had little, or was long."""
        if not isinstance(error, AttemptTimeout) or self.lost:
            return False
        due_s = max(LEAST_TIMEOUT_S, PATIENCE * (self._own_s + self._believed_s))
        return self._began or now_s - self.sent_s < due_s

    def _end(self, now_s: float, output_tokens: int = 0) -> None:
        self.ended = True
        self._fleet.finish(self._ticket, now_s, output_tokens)
        member = self._member
        member.leases.discard(self)
        member.working -= self._works
        member.progress.ended(self)
        self._member.used(self.blocks, now_s)
        self._changed(self)
