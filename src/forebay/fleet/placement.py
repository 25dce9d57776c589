"""Requests that wait for a replica with room, and the loop that sends them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType

from forebay.clock import Clock
from forebay.engine import Deadline
from forebay.errors import EngineError, Overloaded, Unreachable
from forebay.fleet.admission import Dispatcher
from forebay.fleet.lease import ReplicaLease
from forebay.fleet.membership import Membership
from forebay.fleet.model_queues import ModelQueues
from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.routing_request import BLOCK_CHARS, RoutingRequest, TokenEstimate


class Placements:
    """Places requests at the replicas of `membership`, in the order of the dispatchers that `make` returns.

    `watch` is called before a request waits, and raises if it may not; `on_idle` when none waits any more.
    Belongs to one event loop.
    """

    def __init__(
        self,
        fleet: ReplicaTable,
        membership: Membership,
        make: Callable[[], Dispatcher[PendingPlacement]],
        tokens: TokenEstimate,
        clock: Clock,
        *,
        watch: Callable[[], None],
        on_idle: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._membership = membership
        self._tokens = tokens
        self._watch = watch
        self._on_idle = on_idle
        self.clock = clock
        self._dispatcher = ModelQueues(fleet, make, membership.served.only)
        self._waiting: set[PendingPlacement] = set()
        self._waker: asyncio.TimerHandle | asyncio.Handle | None = None
        self._wake_s = math.inf
        self._closed = False
        self.sent: set[str] = set()
        """The ids of the requests that have a replica now."""
        self.held = 0
        """Requests that still waited after the last dispatch. Later ones may find room."""

    def __len__(self) -> int:
        """How many requests wait for room."""
        return len(self._dispatcher)

    def close(self) -> None:
        """Refuse all that wait and dispatch no more."""
        self._closed = True
        for pending in list(self._waiting):
            pending.refuse(Unreachable("the fleet's client was closed", sent=False))
        if self._waker is not None:
            self._waker.cancel()

    def add(self, pending: PendingPlacement) -> None:
        self._watch()
        now_s = self.clock.monotonic_s()
        self._waiting.add(pending)
        pending.waits(now_s, counts=self._membership.time_counts())
        self._dispatcher.add(pending, pending.demand, now_s)
        self.dispatch_soon()

    def remove(self, pending: PendingPlacement) -> None:
        self._waiting.discard(pending)
        self._dispatcher.remove(pending)
        self.dispatch_soon()

    def tick(self, now_s: float) -> None:
        """Count the waiting time of all requests and look for room."""
        counts = self._membership.time_counts()
        for pending in list(self._waiting):
            pending.waits(now_s, counts=counts)
        if len(self._dispatcher):
            self.dispatch_soon()

    def dispatch_soon(self) -> None:
        """Dispatch in the loop's next round, once for all that happens in this one."""
        if self._wake_s == -math.inf or self._closed:
            return
        if self._waker is not None:
            self._waker.cancel()
        self._wake_s = -math.inf
        self._waker = asyncio.get_running_loop().call_soon(self._dispatch)

    def learn(self, chars: int, lease: ReplicaLease) -> None:
        """Learn from the usage of `lease` how many tokens a prompt of `chars` has."""
        if lease.usage is not None and chars:
            self._tokens.learn(chars, lease.usage.prompt_tokens)
            self._fleet.block_tokens = BLOCK_CHARS / self._tokens.chars_per_token

    def refusal(self, waited_s: float, model: str | None) -> EngineError:
        """Why a request for `model` got no replica within `waited_s`."""
        membership = self._membership
        if membership.works(model):
            usable = membership.usable()
            replicas = f"{usable} replica{'s' * (usable != 1)}"
            return Overloaded(
                f"no replica had room for the request within {waited_s:.1f} s: {replicas} with "
                f"{membership.in_flight()} requests in flight, {len(self._waiting)} waiting",
                sent=False,
            )
        return Unreachable(f"there is no replica to send the request to: {membership.why_none()}", sent=False)

    def _dispatch(self) -> None:
        self._waker, self._wake_s = None, math.inf
        now_s = self.clock.monotonic_s()
        for pending, charge in self._dispatcher.ready(now_s):
            self._waiting.discard(pending)
            pending.grant(
                ReplicaLease(
                    self._membership.rows[charge.replica],
                    charge,
                    self._fleet,
                    self.clock,
                    self._changed,
                    blocks=pending.demand.blocks,
                    source=pending.source,
                )
            )
        for pending in self._dispatcher.expired():
            pending.expire()
        if self._wake_s == math.inf and self._dispatcher.wake_s < math.inf:
            self._wake_s = self._dispatcher.wake_s
            delay_s = max(0.0, self._wake_s - now_s)
            self._waker = asyncio.get_running_loop().call_later(delay_s, self._dispatch)
        self.held = len(self._dispatcher)
        if not self.held:
            self._on_idle()

    def _changed(self, lease: ReplicaLease) -> None:
        replica = self._membership.rows.get(lease.number)
        if replica is not None:
            self._membership.sync(replica)
        if len(self._dispatcher):
            self.dispatch_soon()


class PendingPlacement:
    """A request that waits for a replica, and then has one: an async context manager that gives its lease."""

    def __init__(
        self,
        placements: Placements,
        demand: RoutingRequest,
        deadline: Deadline,
        *,
        chars: int,
        id: str,
        source: str | None,
    ) -> None:
        self.demand = demand
        self.source = source
        self.deadline = deadline
        self._id = id
        self._placements = placements
        self._chars = chars
        self._lease: ReplicaLease | None = None
        self._granted: asyncio.Future[ReplicaLease] | None = None
        self._began_s = 0.0

    async def __aenter__(self) -> ReplicaLease:
        loop = asyncio.get_running_loop()
        placements = self._placements
        self._granted = loop.create_future()
        self._began_s = placements.clock.monotonic_s()
        placements.add(self)
        left_s = self.demand.deadline_s - self._began_s
        timer = loop.call_later(max(0.0, left_s), self.expire) if left_s < math.inf else None
        try:
            self._lease = await self._granted
            if self._id:
                placements.sent.add(self._id)
            return self._lease
        except BaseException:
            if self._granted.done() and not self._granted.cancelled() and not self._granted.exception():
                self._granted.result().release()
            else:
                placements.remove(self)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._lease
        assert lease is not None
        self._placements.sent.discard(self._id)
        if isinstance(error, EngineError):
            lease.failed(error)
        lease.release()
        self._placements.learn(self._chars, lease)

    def grant(self, lease: ReplicaLease) -> None:
        """Give it the replica of `lease`."""
        assert self._granted is not None
        if self._granted.done():
            lease.release()
        else:
            self.deadline.begin(lease.sent_s)
            self._granted.set_result(lease)

    def waits(self, now_s: float, *, counts: bool) -> None:
        """Go on waiting, unless the deadline is over; `counts`: the time from now on counts against it."""
        self.deadline.wait(now_s, counts=counts)
        if self.deadline.left_s(now_s) <= 0:
            self.expire()

    def expire(self) -> None:
        """Refuse it because its deadline has passed."""
        waited_s = self._placements.clock.monotonic_s() - self._began_s
        self.refuse(self._placements.refusal(waited_s, self.demand.model))

    def refuse(self, error: EngineError) -> None:
        """Raise `error` to whoever waits, unless it has a replica."""
        if self._granted is not None and not self._granted.done():
            self._granted.set_exception(error)
