"""One request at one replica, from the moment it is placed until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from forebay.clock import Clock
from forebay.engine.client import HttpEngine
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
from forebay.fleet.replicas.member import PATIENCE, Member
from forebay.fleet.state import Fleet
from forebay.fleet.ticket import Ticket
from forebay.records import ReplicaLoad, Usage

REPLICAS_FAULT = (Unreachable, Overloaded, RateLimited, AttemptTimeout, ServerFault, ProtocolViolation)
MISPLACED = (Unauthorized, ModelNotFound)
"""The replica is not what it was taken for; another may be."""
LEAST_TIMEOUT_S = 1.0
"""A call that was given less time than this says nothing of the replica."""


class Lease:
    """The right to send one request to one replica now.

    Its holder tells what happens: `first_token` once, `progress` as often as bytes come, then exactly one of
    `done`, `failed` and `release`; what comes after the end is passed over. Belongs to the client's loop.
    """

    def __init__(
        self,
        member: Member,
        ticket: Ticket,
        fleet: Fleet,
        clock: Clock,
        changed: Callable[[Lease], None],
        *,
        blocks: Sequence[int] = (),
    ) -> None:
        self._member = member
        self._ticket = ticket
        self._fleet = fleet
        self._clock = clock
        self._changed = changed
        self._epoch = member.health.epoch
        self._own_s = fleet.queued_s(ticket.replica)
        self._alone = self._own_s <= ticket.work_s
        self._claimed_s = member.claimed_s
        self._believed_s = member.believed_s
        self._counted = False
        self._began = False
        self.sent_s = ticket.sent_s
        self.blocks = blocks
        """The prefix blocks of its prompt."""
        self.ended = False
        self.lost = ""
        """Why the replica is held to hang with this request; empty while it is not."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when `lost` is set: end the call, and place the request anew."""
        self.usage: Usage | None = None
        self.quiet = False
        """Set while silence says nothing of the replica."""
        self.unseen = False
        """Set while an answer in one piece is awaited: only metrics can show that the replica works."""
        member.leases.add(self)
        member.used(blocks, ticket.sent_s)

    @property
    def url(self) -> str:
        """The replica's URL, without `/v1`."""
        return self._member.url

    @property
    def number(self) -> int:
        """The replica's number, for `Demand.avoid`."""
        return self._ticket.replica

    @property
    def engine(self) -> HttpEngine:
        """A client of the replica, for requests that are read whole."""
        return self._member.engine

    def first_token(self) -> None:
        """The first content has come."""
        if self._began or self.ended:
            return
        self._began = True
        now_s = self._clock.monotonic_s()
        waited_s = now_s - self.sent_s
        self._fleet.first_token(self._ticket, now_s)
        self._member.sign(now_s)
        self._counted = True
        self._member.health.succeeded(self._epoch, now_s, whole=False)
        self._member.reports.first_token(self._claimed_s, self._own_s, waited_s)
        self._member.began(self._fleet, waited_s, alone=self._alone)
        self._changed(self)

    def whole(self) -> None:
        """The answer comes in one piece. Its first token is taken to come when it is expected to."""
        self.quiet = self.unseen = True
        asyncio.get_running_loop().call_later(self._own_s, self._assume_first_token)

    def _assume_first_token(self) -> None:
        if not self._began and not self.ended:
            self._began = True
            self._fleet.assume_first_token(self._ticket, self._clock.monotonic_s())
            self._changed(self)

    def progress(self) -> None:
        """Some bytes of the answer came: the replica lives. The first ones count as the first token."""
        if self._began:
            self._member.sign(self._clock.monotonic_s())
        else:
            self.first_token()

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
            self._member.health.succeeded(self._epoch, now_s, first=not self._counted)
            self._end(now_s, 0 if usage is None else usage.completion_tokens)

    def failed(self, error: EngineError, *, blame: bool = True) -> None:
        """The call failed. What lies in the request is not held against the replica, nor without `blame`."""
        if self.ended:
            return
        now_s = self._clock.monotonic_s()
        health = self._member.health
        if isinstance(error, MISPLACED):
            health.shut(str(error), now_s)
            self._member.doubtful = True
        elif isinstance(error, REPLICAS_FAULT):
            if blame and not self._excused(error, now_s):
                health.failed(self._epoch, str(error), now_s, at_least_s=error.retry_after_s)
        else:
            health.succeeded(self._epoch, now_s, first=not self._counted)
        self._end(now_s)

    def convict(self, error: EngineError) -> None:
        """After a failure without blame: another replica has done what this one failed at, with `error`."""
        self._member.health.failed(self._epoch, str(error), self._clock.monotonic_s())
        self._changed(self)

    def release(self) -> None:
        """Nobody wants the answer any more."""
        if not self.ended:
            self._end(self._clock.monotonic_s())

    def lose(self, why: str) -> None:
        """The replica hangs: tells the holder."""
        if not self.ended:
            self.lost = why
            self.on_lost()

    def _excused(self, error: EngineError, now_s: float) -> bool:
        """Whether a call ran out of time because it had little, or was long."""
        if not isinstance(error, AttemptTimeout):
            return False
        due_s = max(LEAST_TIMEOUT_S, PATIENCE * (self._own_s + self._believed_s))
        return self._began or now_s - self.sent_s < due_s

    def _end(self, now_s: float, output_tokens: int = 0) -> None:
        self.ended = True
        self._fleet.finish(self._ticket, now_s, output_tokens)
        self._member.leases.discard(self)
        self._member.used(self.blocks, now_s)
        self._changed(self)
