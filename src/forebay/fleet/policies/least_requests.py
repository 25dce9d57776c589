"""The fewest requests."""

from __future__ import annotations

from forebay.fleet.base import Demand, Vector
from forebay.fleet.policies.choice import least
from forebay.fleet.state import Fleet


class LeastRequests:
    """The replica with the fewest requests in flight."""

    def choose(self, demand: Demand, cached: Vector, fleet: Fleet, now_s: float) -> int:
        return least(fleet.requests + fleet.foreign, fleet)
