"""The least expected time to first token."""

from __future__ import annotations

from forebay.fleet.base import Demand, Vector
from forebay.fleet.estimate import prefill_s, queue_s, stall_s
from forebay.fleet.policies.choice import least
from forebay.fleet.state import Fleet


class ExpectedTtft:
    """The replica with the least sum of the time to this request's first token and its cost to the others.

    There is no threshold for imbalance: a hot prefix spills by itself once the cached replica's queue costs
    more than a prefill elsewhere.
    """

    def choose(self, demand: Demand, cached: Vector, fleet: Fleet, now_s: float) -> int:
        work_s = prefill_s(fleet, demand, cached)
        costs = stall_s(fleet, work_s)
        costs += work_s
        costs += queue_s(fleet, now_s)
        return least(costs, fleet)
