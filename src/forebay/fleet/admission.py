"""When each request is sent: at once, or once a replica has room. A `Policy` only chooses the replica."""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from forebay.fleet.estimate import fits, prefill_s, queue_of_s, queue_s, stall_s
from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.routing_request import InFlightRequest, RoutingRequest, Vector, new_tokens

Item = TypeVar("Item")


class Policy(Protocol):
    """Chooses the replica for a request. Must be deterministic, and must not change the fleet."""

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
        """Return the number of an available replica; there is at least one. `cached`: prompt tokens in each
        prefix cache."""
        ...


class Dispatcher(Protocol[Item]):
    """Decides when each request is sent, and where.

    The owner calls `ready` after each `add`, first token and end of a request, when a replica becomes
    available, and at `wake_s`.
    """

    wake_s: float

    def add(self, item: Item, demand: RoutingRequest, now_s: float) -> None: ...

    def ready(self, now_s: float) -> list[tuple[Item, InFlightRequest]]:
        """Return the requests to send now, in order. They already count as in flight."""
        ...

    def remove(self, item: Item) -> None: ...

    def expired(self) -> list[Item]: ...

    def __len__(self) -> int: ...


class ImmediateDispatcher(Generic[Item]):
    wake_s = math.inf

    def __init__(self, fleet: ReplicaTable, policy: Policy) -> None:
        self._fleet = fleet
        self._policy = policy
        self._added: deque[tuple[Item, RoutingRequest]] = deque()

    def __len__(self) -> int:
        return len(self._added)

    def add(self, item: Item, demand: RoutingRequest, now_s: float) -> None:
        self._added.append((item, demand))

    def ready(self, now_s: float) -> list[tuple[Item, InFlightRequest]]:
        fleet = self._fleet
        sent = []
        while self._added and fleet.numbers():
            item, demand = self._added.popleft()
            cached = fleet.cached(demand)
            with fleet.without(demand.avoid):
                replica = self._policy.choose(demand, cached, fleet, now_s)
            sent.append((item, fleet.take(replica, demand, cached, now_s)))
        return sent

    def remove(self, item: Item) -> None:
        self._added = deque(entry for entry in self._added if entry[0] is not item)

    def expired(self) -> list[Item]:
        return []


LOOK_AHEAD = 32
"""How many requests for busy replicas may be skipped to find one for an idle replica."""
NEVER_DUE_S = 3600.0
MIN_WAKE_S = 0.001

Waiting = tuple[float, int, int, Item, RoutingRequest]


class ReplicaRoom(NamedTuple):
    """`queues`: seconds of prefill that is queued or waits here. `turns_s`: seconds until a full replica has
    a place.
    """

    has_room: NDArray[np.bool_]
    queues: Vector
    turns_s: Vector

    def any(self) -> bool:
        return bool(np.count_nonzero(self.has_room))


class Fit(NamedTuple):
    replica: int
    cached: Vector
    first_s: float
    late: bool
    fits: bool


class Admission(Generic[Item]):
    """The default dispatcher: sends a request when its best replica has room.

    A replica has room while its queued prefill is shorter than one of its steps (`ReplicaTable.hold_s`), or
    while fewer than `prefill_slots` requests wait for a first token; never for more than `window`. An idle
    replica always has room, so that a wrong report cannot stop the stream.

    Order: due time, priority, arrival. The more requests of a tenant wait, the later they are due. Late ones
    wait until nothing else can be sent, unless they keep their place. A request whose best replica is full
    counts as queued work there.
    """

    def __init__(self, fleet: ReplicaTable) -> None:
        self._fleet = fleet
        self._waiting: list[Waiting[Item]] = []
        self._late: list[Waiting[Item]] = []
        self._expired: list[Item] = []
        self._tenants: dict[str, int] = {}
        self._added = 0
        self.wake_s = math.inf
        # No replica has room before this time.
        self._closed_until_s = -math.inf

    def __len__(self) -> int:
        return len(self._waiting) + len(self._late)

    def add(self, item: Item, demand: RoutingRequest, now_s: float) -> None:
        due_s = min(demand.due_s, demand.deadline_s)
        later_s = 0.0 if demand.tenant is None else self._join(demand.tenant, demand)
        if demand.due_s < math.inf:
            due_s += later_s
        else:
            # Deadlines count from arrival, so exact ones would all differ, and priority would have no effect.
            # Also, a tenant's later requests could overtake an earlier one without end.
            due_s = math.floor((now_s + NEVER_DUE_S if due_s == math.inf else due_s) + later_s)
        heappush(self._waiting, (due_s, demand.priority, self._added, item, demand))
        self._added += 1

    def expired(self) -> list[Item]:
        expired, self._expired = self._expired, []
        return expired

    def ready(self, now_s: float) -> list[tuple[Item, InFlightRequest]]:
        sent: list[tuple[Item, InFlightRequest]] = []
        if not self._waiting and not self._late:
            self.wake_s, self._closed_until_s = math.inf, -math.inf
            return sent
        if now_s < self._closed_until_s and not self._opened(now_s):
            self.wake_s = self._closed_until_s
            return sent
        for heap in (self._waiting, self._late):
            while heap and heap[0][4].deadline_s < now_s:
                self._give_up(heappop(heap))
        # In order, each request is fitted to its best replica, and placed there if that has room.
        room = self._look(now_s)
        passed: list[tuple[list[Waiting[Item]], Waiting[Item]]] = []
        for heap in (self._waiting, self._late):
            while len(passed) < LOOK_AHEAD and room.any() and (entry := self._next(heap, now_s)) is not None:
                demand = entry[4]
                best = self._fit(demand, room, now_s)
                if best.late and heap is self._waiting:
                    heappush(self._late, (float(entry[2]), *entry[1:]))
                elif best.fits:
                    sent.append((entry[3], self._place(demand, best, room, now_s)))
                else:
                    # It waits for that replica and counts as queued work there.
                    room.has_room[best.replica] = False
                    room.queues[best.replica] = best.first_s + room.turns_s[best.replica]
                    passed.append((heap, entry))
        for heap, entry in passed:
            heappush(heap, entry)
        self.wake_s, self._closed_until_s = math.inf, -math.inf
        if self._waiting or self._late:
            touched = sent or passed or not self._fleet.all_available
            self._set_wake(queue_s(self._fleet, now_s) if touched else room.queues, now_s)
        return sent

    def _look(self, now_s: float) -> ReplicaRoom:
        fleet = self._fleet
        queues = queue_s(fleet, now_s)
        has_room = queues <= fleet.hold_s
        has_room |= fleet.waiting < fleet.prefill_slots
        has_room |= fleet.busy == 0
        has_room &= fleet.requests < fleet.window
        fleet.changed.clear()
        if not fleet.all_available:
            has_room &= fleet.available
            queues[~fleet.available] = math.inf
        turns_s = (fleet.requests >= fleet.window) * (fleet.answer_s / np.maximum(fleet.requests, 1.0))
        queues += turns_s
        return ReplicaRoom(has_room, queues, turns_s)

    def _next(self, heap: list[Waiting[Item]], now_s: float) -> Waiting[Item] | None:
        while heap:
            entry = heappop(heap)
            if entry[4].deadline_s >= now_s:
                return entry
            self._give_up(entry)
        return None

    def _fit(self, demand: RoutingRequest, room: ReplicaRoom, now_s: float) -> Fit:
        fleet = self._fleet
        cached = fleet.cached(demand)
        work_s = prefill_s(fleet, demand, cached)
        firsts = work_s + room.queues
        best = self._best(stall_s(fleet, work_s) + firsts, demand)
        first_s = float(firsts[best])
        late = not demand.keeps_place and now_s + first_s > demand.due_s
        if not room.has_room[best]:
            return Fit(best, cached, first_s, late, False)
        return Fit(best, cached, first_s, late, fits(fleet, new_tokens(demand, cached[best]), best))

    def _place(self, demand: RoutingRequest, fit: Fit, room: ReplicaRoom, now_s: float) -> InFlightRequest:
        fleet, replica = self._fleet, fit.replica
        self._leave(demand)
        request = fleet.take(replica, demand, fit.cached, now_s)
        room.queues[replica] += request.work_s
        if fleet.requests[replica] >= fleet.window[replica]:
            room.turns_s[replica] = fleet.answer_s / fleet.requests[replica]
            room.queues[replica] += room.turns_s[replica]
        open = fleet.available[replica] and _has_room(fleet, replica, float(room.queues[replica]))
        room.has_room[replica] = open
        return request

    def remove(self, item: Item) -> None:
        for heap in (self._waiting, self._late):
            for at, entry in enumerate(heap):
                if entry[3] is item:
                    self._leave(entry[4])
                    heap[at] = heap[-1]
                    heap.pop()
                    heapify(heap)
                    return

    def _best(self, costs: Vector, demand: RoutingRequest) -> int:
        best = int(costs.argmin())
        if best in demand.avoid:
            others = costs.copy()
            others[[replica for replica in demand.avoid if replica < len(costs)]] = math.inf
            other = int(others.argmin())
            if others[other] < math.inf:
                return other
        return best

    def _give_up(self, entry: Waiting[Item]) -> None:
        self._leave(entry[4])
        self._expired.append(entry[3])

    def _set_wake(self, queues: Vector, now_s: float) -> None:
        fleet = self._fleet
        excess = queues - fleet.hold_s
        excess[(fleet.waiting < fleet.prefill_slots) | (fleet.busy == 0)] = 0.0
        excess[fleet.requests >= fleet.window] = math.inf
        if not fleet.all_available:
            excess = excess[fleet.available]
        closed = excess > 0
        if not len(closed):
            return
        least_s = float(excess[closed].min(initial=math.inf))
        self.wake_s = now_s + max(least_s, MIN_WAKE_S)
        if closed.all():
            self._closed_until_s = self.wake_s

    def _opened(self, now_s: float) -> bool:
        fleet = self._fleet
        for replica in fleet.changed:
            queued_s = queue_of_s(fleet, replica, now_s)
            if _has_room(fleet, replica, queued_s) or not fleet.busy[replica]:
                return True
            if fleet.requests[replica] < fleet.window[replica]:
                excess_s = queued_s - float(fleet.hold_s[replica])
                self._closed_until_s = min(self._closed_until_s, now_s + max(excess_s, MIN_WAKE_S))
        fleet.changed.clear()
        return False

    def _join(self, tenant: str, demand: RoutingRequest) -> float:
        before = self._tenants.get(tenant, 0)
        self._tenants[tenant] = before + demand.prompt_tokens
        speed_s = self._fleet.fit.speed.token_s / max(len(self._fleet.numbers()), 1)
        return before * speed_s * len(self._tenants)

    def _leave(self, demand: RoutingRequest) -> None:
        if demand.tenant is not None:
            left = self._tenants[demand.tenant] - demand.prompt_tokens
            if left:
                self._tenants[demand.tenant] = left
            else:
                del self._tenants[demand.tenant]


def _has_room(fleet: ReplicaTable, replica: int, queued_s: float) -> bool:
    if fleet.requests[replica] >= fleet.window[replica]:
        return False
    return bool(queued_s <= fleet.hold_s[replica] or fleet.waiting[replica] < fleet.prefill_slots[replica])
