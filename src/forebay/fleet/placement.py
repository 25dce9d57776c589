"""Requests that wait for a replica with room, in a queue per model, and the loop that sends them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

from forebay.clock import Clock
from forebay.engine import Deadline
from forebay.errors import EngineError, Overloaded, Unreachable
from forebay.fleet.admission import Dispatcher
from forebay.fleet.lease import ReplicaLease
from forebay.fleet.membership import Membership
from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.routing_request import BLOCK_CHARS, InFlightRequest, RoutingRequest, TokenEstimate

Item = TypeVar("Item")


class ModelQueues(Generic[Item]):
    """A dispatcher with a queue per model, each over the replicas that serve it (`only`; None: all).

    Requests for a model whose replicas are full do not block others. Models on the same replica take turns.
    """

    def __init__(
        self,
        fleet: ReplicaTable,
        make: Callable[[], Dispatcher[Item]],
        only: Callable[[str], Sequence[int] | None],
    ) -> None:
        self._fleet = fleet
        self._make = make
        self._only = only
        self._queues: dict[str | None, Dispatcher[Item]] = {}
        self._expired: list[Item] = []
        self.wake_s = math.inf

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, item: Item, demand: RoutingRequest, now_s: float) -> None:
        if demand.model not in self._queues:
            self._queues[demand.model] = self._make()
        self._queues[demand.model].add(item, demand, now_s)

    def ready(self, now_s: float) -> list[tuple[Item, InFlightRequest]]:
        fleet, changed = self._fleet, set(self._fleet.changed)
        sent: list[tuple[Item, InFlightRequest]] = []
        self.wake_s = math.inf
        for model, queue in list(self._queues.items()):
            # Each queue clears the set of changes, but must see all of them.
            fleet.changed |= changed
            with self._shown(model):
                found = queue.ready(now_s)
            self._expired += queue.expired()
            self.wake_s = min(self.wake_s, queue.wake_s)
            sent += found
            if not len(queue):
                del self._queues[model]
            elif found:
                # A queue that got a place is asked last next time.
                self._queues[model] = self._queues.pop(model)
        fleet.changed.clear()
        return sent

    def remove(self, item: Item) -> None:
        for queue in self._queues.values():
            queue.remove(item)

    def expired(self) -> list[Item]:
        expired, self._expired = self._expired, []
        return expired

    def _shown(self, model: str | None) -> AbstractContextManager[None]:
        rows = None if model is None else self._only(model)
        return nullcontext() if rows is None else self._fleet.only(rows)


@dataclass(slots=True, eq=False)
class WaitingRequest:
    demand: RoutingRequest
    deadline: Deadline
    source: str | None
    since_s: float
    granted: asyncio.Future[ReplicaLease]


class Placements:
    """Places requests at the replicas of `membership`. Belongs to one event loop.

    `watch` is called before a request waits, and raises if it may not; `on_idle` when none waits any more.
    """

    def __init__(
        self,
        fleet: ReplicaTable,
        membership: Membership,
        make: Callable[[], Dispatcher[WaitingRequest]],
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
        self._clock = clock
        self._dispatcher = ModelQueues(fleet, make, membership.served.only)
        self._waiting: set[WaitingRequest] = set()
        self._waker: asyncio.TimerHandle | asyncio.Handle | None = None
        self._wake_s = math.inf
        self._closed = False
        self.sent: set[str] = set()
        self.held = 0

    def __len__(self) -> int:
        return len(self._dispatcher)

    @asynccontextmanager
    async def place(
        self,
        demand: RoutingRequest,
        deadline: Deadline,
        *,
        chars: int = 0,
        id: str = "",
        source: str | None = None,
    ) -> AsyncIterator[ReplicaLease]:
        lease = await self._wait(demand, deadline, source)
        if id:
            self.sent.add(id)
        try:
            yield lease
        except EngineError as error:
            lease.failed(error)
            raise
        finally:
            self.sent.discard(id)
            lease.release()
            self._learn(chars, lease)

    def close(self) -> None:
        self._closed = True
        for waiting in list(self._waiting):
            _refuse(waiting, Unreachable("the fleet's client was closed", sent=False))
        if self._waker is not None:
            self._waker.cancel()

    def tick(self, now_s: float) -> None:
        counts = self._membership.time_counts()
        for waiting in list(self._waiting):
            self._count(waiting, now_s, counts=counts)
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

    async def _wait(self, demand: RoutingRequest, deadline: Deadline, source: str | None) -> ReplicaLease:
        self._watch()
        loop, now_s = asyncio.get_running_loop(), self._clock.monotonic_s()
        waiting = WaitingRequest(demand, deadline, source, now_s, loop.create_future())
        self._waiting.add(waiting)
        self._count(waiting, now_s, counts=self._membership.time_counts())
        self._dispatcher.add(waiting, demand, now_s)
        self.dispatch_soon()
        left_s = demand.deadline_s - now_s
        timer = None if left_s == math.inf else loop.call_later(max(0.0, left_s), self._expire, waiting)
        granted = waiting.granted
        try:
            return await granted
        except BaseException:
            if granted.done() and not granted.cancelled() and not granted.exception():
                granted.result().release()
            else:
                self._waiting.discard(waiting)
                self._dispatcher.remove(waiting)
                self.dispatch_soon()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _count(self, waiting: WaitingRequest, now_s: float, *, counts: bool) -> None:
        waiting.deadline.wait(now_s, counts=counts)
        if waiting.deadline.left_s(now_s) <= 0:
            self._expire(waiting)

    def _expire(self, waiting: WaitingRequest) -> None:
        waited_s = self._clock.monotonic_s() - waiting.since_s
        _refuse(waiting, self._refusal(waited_s, waiting.demand.model))

    def _refusal(self, waited_s: float, model: str | None) -> EngineError:
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

    def _learn(self, chars: int, lease: ReplicaLease) -> None:
        if lease.usage is not None and chars:
            self._tokens.learn(chars, lease.usage.prompt_tokens)
            self._fleet.block_tokens = BLOCK_CHARS / self._tokens.chars_per_token

    def _dispatch(self) -> None:
        self._waker, self._wake_s = None, math.inf
        now_s = self._clock.monotonic_s()
        for waiting, request in self._dispatcher.ready(now_s):
            self._waiting.discard(waiting)
            lease = ReplicaLease(
                self._membership.rows[request.replica],
                request,
                self._fleet,
                self._clock,
                self._changed,
                blocks=waiting.demand.blocks,
                source=waiting.source,
            )
            if waiting.granted.done():
                lease.release()
            else:
                waiting.deadline.begin(lease.sent_s)
                waiting.granted.set_result(lease)
        for waiting in self._dispatcher.expired():
            self._expire(waiting)
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


def _refuse(waiting: WaitingRequest, error: EngineError) -> None:
    if not waiting.granted.done():
        waiting.granted.set_exception(error)
