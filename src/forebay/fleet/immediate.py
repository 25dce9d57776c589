"""Requests sent as they come, each to the replica that a policy chooses."""

from __future__ import annotations

import math
from collections import deque
from typing import Generic

from forebay.fleet.dispatch import Item, Policy, RoutingRequest
from forebay.fleet.state import Fleet
from forebay.fleet.ticket import ReplicaCharge


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
