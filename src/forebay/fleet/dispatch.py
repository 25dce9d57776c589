"""What it means to route: policies, which choose a replica, and dispatchers, which say when."""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, Protocol, TypeVar

from forebay.fleet.routing_request import ReplicaCharge, RoutingRequest, Vector
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
