"""When a request goes where: at once, or held back until a replica has room for it (engines full, their
queues short). A policy only says which replica takes it.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

import numpy as np

from forebay.fleet.estimate import fits, prefill_s, queue_of_s, queue_s, stall_s
from forebay.fleet.routing_request import ReplicaCharge, RoutingRequest, Vector, new_tokens
from forebay.fleet.state import Fleet

Item = TypeVar("Item")


class Policy(Protocol):
    """A rule that says which replica takes a request.

    It sees the fleet and changes nothing in it. `choose` is only called while some replica is available, and
    gives the number of one that is. A policy may keep state of its own (a turn, a random generator); the
    same calls in the same order give the same choices.
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        """`cached`: for each replica, how many of the prompt's tokens its prefix cache should hold."""
        ...


class Dispatcher(Protocol[Item]):
    """Says when each request goes where.

    The owner calls `add` for each request, and `ready` after that, after each first token and each end of a
    request, when a replica becomes available, and when `wake_s` has come; it sends what `ready` gives at
    once. `item` is whatever the owner knows the request by.
    """

    wake_s: float
    """When `ready` is to be called although nothing has happened; infinite where that is not needed."""

    def add(self, item: Item, demand: RoutingRequest, now_s: float) -> None: ...

    def ready(self, now_s: float) -> list[tuple[Item, ReplicaCharge]]:
        """The requests to send now, in order, each counted as in flight at its ticket's replica."""
        ...

    def remove(self, item: Item) -> None:
        """Nobody waits for this request any more. One that does not wait here is passed over."""
        ...

    def expired(self) -> list[Item]:
        """The requests that were given up since the last call: their deadline passed while they waited."""
        ...

    def __len__(self) -> int:
        """How many requests wait."""
        ...


class ImmediateDispatcher(Generic[Item]):
    """A dispatcher that holds nothing back while some replica is available."""

    wake_s = math.inf

    def __init__(self, fleet: Fleet, policy: Policy) -> None:
        self._fleet = fleet
        self._policy = policy
        self._added: deque[tuple[Item, RoutingRequest]] = deque()

    def __len__(self) -> int:
        return len(self._added)

    def add(self, item: Item, demand: RoutingRequest, now_s: float) -> None:
        self._added.append((item, demand))

    def ready(self, now_s: float) -> list[tuple[Item, ReplicaCharge]]:
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
"""How many requests that wait for a busy replica are passed over at most to find one for an idle one."""
NEVER_DUE_S = 3600.0
"""When a request without a due moment is due after its arrival: behind those that have one, but not last
forever."""
MIN_WAKE_S = 0.001

Waiting = tuple[float, int, int, Item, RoutingRequest]
"""A request in its place: the moment it is ordered by, its priority, its number, and what it is."""


class Admission(Generic[Item]):
    """The default dispatcher: sends a request when the replica that suits it best has room for it.

    A replica has room while the prefill queued there is shorter than one of its steps takes
    (`Fleet.hold_s`, learned): it always has its next step's work, and hardly more. It has room for as many
    without a first token as it works on side by side (`Fleet.beside`), whatever their prefill, and for no
    more than it gets the most done with (`Fleet.window`).

    What waits is ordered by the moment it is due, then priority, then arrival. A tenant's requests are due
    the later the more of its own wait before them, by the time they take at its fair share. What can no
    longer get its first token when it is due waits until nothing else can be sent, unless it keeps its place;
    what has passed its deadline is given up.

    Whatever a replica says of others' requests, it has room for one of ours: nothing that it reports can stop
    the stream, and our own first token shows whether it is true.

    A request whose best replica has no room waits for it, and its work counts there for those behind it: so
    many wait for a cached prefix as it is worth, the others go elsewhere.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._waiting: list[Waiting[Item]] = []
        self._late: list[Waiting[Item]] = []
        self._expired: list[Item] = []
        self._tenants: dict[str, int] = {}
        self._added = 0
        self.wake_s = math.inf
        # No replica has room before this moment, as far as is known.
        self._closed_until_s = -math.inf

    def __len__(self) -> int:
        return len(self._waiting) + len(self._late)

    def add(self, item: Item, demand: RoutingRequest, now_s: float) -> None:
        due_s = min(demand.due_s, demand.deadline_s)
        later_s = 0.0 if demand.tenant is None else self._join(demand.tenant, demand)
        if demand.due_s < math.inf:
            due_s += later_s
        else:
            # Deadlines run from arrival: taken exactly, no two are alike, and priority would mean nothing.
            # And a tenant's later requests would overtake an earlier one without end.
            due_s = math.floor((now_s + NEVER_DUE_S if due_s == math.inf else due_s) + later_s)
        heappush(self._waiting, (due_s, demand.priority, self._added, item, demand))
        self._added += 1

    def expired(self) -> list[Item]:
        expired, self._expired = self._expired, []
        return expired

    def ready(self, now_s: float) -> list[tuple[Item, ReplicaCharge]]:
        sent: list[tuple[Item, ReplicaCharge]] = []
        if not self._waiting and not self._late:
            self.wake_s, self._closed_until_s = math.inf, -math.inf
            return sent
        if now_s < self._closed_until_s and not self._opened(now_s):
            self.wake_s = self._closed_until_s
            return sent
        for heap in (self._waiting, self._late):
            while heap and heap[0][4].deadline_s < now_s:
                self._give_up(heappop(heap))
        fleet = self._fleet
        queues = queue_s(fleet, now_s)
        has_room = queues <= fleet.hold_s
        has_room |= fleet.waiting < fleet.beside
        has_room |= fleet.busy == 0
        has_room &= fleet.requests < fleet.window
        fleet.changed.clear()
        if not fleet.all_available:
            has_room &= fleet.available
            queues[~fleet.available] = math.inf
        # Where there are as many as there may be, the next one goes in when one of them ends.
        turns_s = (fleet.requests >= fleet.window) * (fleet.answer_s / np.maximum(fleet.requests, 1.0))
        queues += turns_s
        aside: list[tuple[list[Waiting[Item]], Waiting[Item]]] = []
        for heap in (self._waiting, self._late):
            while heap and len(aside) < LOOK_AHEAD and np.count_nonzero(has_room):
                entry = heappop(heap)
                item, demand = entry[3], entry[4]
                if demand.deadline_s < now_s:
                    self._give_up(entry)
                    continue
                cached = fleet.cached(demand)
                work_s = prefill_s(fleet, demand, cached)
                firsts = work_s + queues
                costs = stall_s(fleet, work_s) + firsts
                best = self._best(costs, demand)
                late = not demand.keeps_place and now_s + float(firsts[best]) > demand.due_s
                if heap is self._waiting and late:
                    heappush(self._late, (float(entry[2]), *entry[1:]))
                    continue
                if has_room[best]:
                    if fits(fleet, new_tokens(demand, cached[best]), best):
                        self._leave(demand)
                        ticket = fleet.take(best, demand, cached, now_s)
                        sent.append((item, ticket))
                        queues[best] += ticket.work_s
                        if fleet.requests[best] >= fleet.window[best]:
                            turns_s[best] = fleet.answer_s / fleet.requests[best]
                            queues[best] += turns_s[best]
                        has_room[best] = fleet.available[best] and _room(fleet, best, float(queues[best]))
                        continue
                    has_room[best] = False
                queues[best] = firsts[best] + turns_s[best]
                aside.append((heap, entry))
        for heap, entry in aside:
            heappush(heap, entry)
        self.wake_s, self._closed_until_s = math.inf, -math.inf
        if self._waiting or self._late:
            touched = sent or aside or not fleet.all_available
            self._set_wake(queue_s(fleet, now_s) if touched else queues, now_s)
        return sent

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
        """Note when the first of the replicas without room has some again, if nothing happens until then."""
        fleet = self._fleet
        excess = queues - fleet.hold_s
        excess[(fleet.waiting < fleet.beside) | (fleet.busy == 0)] = 0.0
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
        """Whether a replica has room since it was found that none has."""
        fleet = self._fleet
        for replica in fleet.changed:
            queued_s = queue_of_s(fleet, replica, now_s)
            if _room(fleet, replica, queued_s) or not fleet.busy[replica]:
                return True
            if fleet.requests[replica] < fleet.window[replica]:
                excess_s = queued_s - float(fleet.hold_s[replica])
                self._closed_until_s = min(self._closed_until_s, now_s + max(excess_s, MIN_WAKE_S))
        fleet.changed.clear()
        return False

    def _join(self, tenant: str, demand: RoutingRequest) -> float:
        """Count a request of the tenant's; gives the seconds that those before it take at its fair share."""
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


def _room(fleet: Fleet, replica: int, queued_s: float) -> bool:
    """Whether a replica with `queued_s` seconds of prefill has room, apart from its memory."""
    if fleet.requests[replica] >= fleet.window[replica]:
        return False
    return bool(queued_s <= fleet.hold_s[replica] or fleet.waiting[replica] < fleet.beside[replica])
