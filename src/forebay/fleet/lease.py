"""One request at one replica, from the moment it is placed until it ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from forebay.clock import Clock
from forebay.engine.replica import ReplicaEngine
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
from forebay.fleet.replicas.member import WHOLE, Member
from forebay.fleet.replicas.progress import PATIENCE
from forebay.fleet.state import Fleet
from forebay.fleet.ticket import Ticket
from forebay.fleet.window import Place
from forebay.records import ReplicaLoad, Usage

REPLICAS_FAULT = (Unreachable, Overloaded, RateLimited, AttemptTimeout, ServerFault, ProtocolViolation)
MISPLACED = (Unauthorized, ModelNotFound)
"""The replica is not what it was taken for; another may be."""
LEAST_TIMEOUT_S = 1.0
"""A call that was given less time than this says nothing of the replica."""
FULL = (Overloaded, RateLimited)
"""What says that there were too many requests."""
TOLD: Place = (-1, 0)
GAPS = 8
"""Contents whose mean distance makes one sample of how fast answers come."""


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
        self._claimed_s = member.claimed_s
        self._believed_s = member.believed_s
        self._counted = False
        self._began = False
        self.sent_s = self.moved_s = ticket.sent_s
        self.passed_s = math.nan
        self.timeout_s = math.inf
        """For how long there may be no progress on it; its holder may set it."""
        self._first_s = math.nan
        # What is measured depends on whether anything shows before the end of an answer: the time to all of
        # it, or the time to its first token and then that between its contents.
        self._running = self._beside = TOLD
        self._sent_as = member.running.number, int(fleet.requests[ticket.replica])
        if member.whole:
            self._running = member.running.place(self._sent_as[1])
        else:
            self._beside = member.beside.place(int(fleet.waiting[ticket.replica]))
        self._contents = 0
        self._sampled = False
        self._mark_s = 0.0
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
        if not self._began:
            self._began = True
            self._fleet.first_token(self._ticket, now_s)
        self._first_s = self._mark_s = now_s
        if not member.whole:
            self._running = member.running.place(len(member.leases))
        member.progress.began(self, now_s)
        self._counted = True
        member.health.succeeded(self._epoch, now_s, whole=False)
        member.reports.first_token(self._claimed_s, self._own_s, waited_s)
        member.began()
        member.beside.took(self._beside, waited_s, now_s)
        self._beside = TOLD
        member.tell(self._fleet)
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

    @property
    def begun(self) -> bool:
        """Whether something of its answer has come."""
        return not math.isnan(self._first_s)

    def set_aside(self) -> None:
        """It waits for its first token no longer than others do: it is not what keeps others from theirs."""
        self._assume_first_token()

    def progress(self) -> None:
        """Some bytes of the answer came: the replica lives. The first ones count as the first token."""
        if not self.begun:
            self.first_token()
            return
        now_s = self._clock.monotonic_s()
        self._member.progress.went_on(self, now_s)
        self._member.health.sign(now_s)
        self._contents += 1
        if self._contents == GAPS:
            self._sample(now_s)

    def _sample(self, now_s: float) -> None:
        """Answers that come token by token show at once how fast they come, with so many requests there."""
        member = self._member
        if not member.whole and self._contents:
            member.running.took(self._running, (now_s - self._mark_s) / self._contents, now_s)
            member.tell(self._fleet)
            self._sampled = True
            self._running = member.running.place(len(member.leases))
        self._contents, self._mark_s = 0, now_s

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
            self._learn(now_s)
            self._end(now_s, 0 if usage is None else usage.completion_tokens)

    def _learn(self, now_s: float) -> None:
        """What the whole of an answer shows of how many requests the replica works on at once."""
        member, took_s = self._member, now_s - self.sent_s
        whole = not self._first_s - self.sent_s < WHOLE * took_s
        member.answered(took_s, whole=whole, now_s=now_s)
        if member.whole:
            member.running.took(self._running, took_s, now_s)
            self._running = TOLD
        elif not self._sampled or self._contents >= GAPS / 2:
            self._sample(now_s)
        member.tell(self._fleet)

    def failed(self, error: EngineError, *, blame: bool = True) -> None:
        """The call failed. What lies in the request is not held against the replica, nor without `blame`."""
        if self.ended:
            return
        now_s = self._clock.monotonic_s()
        health = self._member.health
        in_flight = len(self._member.leases) - 1
        if isinstance(error, FULL):
            if self._member.refused(error, self._sent_as[1], self.sent_s, now_s):
                self._member.tell(self._fleet)
                health.failed(self._epoch, str(error), now_s, in_flight=in_flight)
        elif isinstance(error, MISPLACED):
            if blame:
                health.shut(str(error), now_s)
            self._member.doubtful = True
        elif isinstance(error, REPLICAS_FAULT):
            if blame and not self._excused(error, now_s):
                wait_s = error.retry_after_s
                health.failed(self._epoch, str(error), now_s, in_flight=in_flight, at_least_s=wait_s)
        else:
            health.succeeded(self._epoch, now_s, first=not self._counted)
        self._end(now_s)

    def late(self) -> None:
        """Its time is over. Where the replica worked on others meanwhile, it had too many of them."""
        if not self.ended and self._member.moved_since(self.sent_s):
            self._member.running.too_many(self._sent_as[0], self._clock.monotonic_s())
            self._member.tell(self._fleet)

    def convict(self, error: EngineError) -> None:
        """After a failure without blame: another replica has done what this one failed at, with `error`."""
        self._member.health.failed(self._epoch, str(error), self._clock.monotonic_s())
        self._changed(self)

    def release(self) -> None:
        """Nobody wants the answer any more."""
        if not self.ended:
            self._end(self._clock.monotonic_s())

    def overdue(self, now_s: float, here_since_s: float) -> tuple[float, bool]:
        """As `Progress` has it."""
        return self._member.progress.overdue(self, begun=self.begun, now_s=now_s, here_since_s=here_since_s)

    def lose(self, why: str) -> None:
        """The replica hangs, or left this request lying: tells the holder."""
        if not self.ended:
            self.lost = why
            self.on_lost()

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
        member.progress.ended(self)
        member.beside.left(self._beside)
        member.running.left(self._running)
        self._member.used(self.blocks, now_s)
        self._changed(self)
