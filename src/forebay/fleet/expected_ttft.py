"""The default policy. Imports only numpy, since Ray nodes have little more."""

from __future__ import annotations

import numpy as np

from forebay.fleet.estimate import prefill_s, queue_s, stall_s
from forebay.fleet.routing_request import RoutingRequest, Vector
from forebay.fleet.state import Fleet


def least(costs: Vector, fleet: Fleet) -> int:
    """The available replica with the least cost; the lowest number among equals."""
    if fleet.all_available:
        return int(costs.argmin())
    return int(np.where(fleet.available, costs, np.inf).argmin())


class ExpectedTtft:
    """Chooses the least sum of the expected time to first token and the cost to other requests.

    There is no threshold for imbalance: a hot prefix spills once the queue at the cached replica costs more
    than a prefill elsewhere.
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        work_s = prefill_s(fleet, demand, cached)
        costs = stall_s(fleet, work_s)
        costs += work_s
        costs += queue_s(fleet, now_s)
        return least(costs, fleet)
