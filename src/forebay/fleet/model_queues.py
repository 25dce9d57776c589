"""A queue per model, for replicas that serve different ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

from forebay.fleet.admission import Dispatcher
from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.routing_request import InFlightRequest, RoutingRequest

Item = TypeVar("Item")


class ModelQueues(Generic[Item]):
    """A dispatcher with a queue per model, each over the replicas that serve it.

    Requests for a model whose replicas are full do not block others. Models on the same replica, such as
    adapters of one base model, take turns. Requests without a model may go anywhere. `only` returns the
    replicas that serve a model; None if all do.
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
