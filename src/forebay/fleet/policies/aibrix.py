"""The published rule of AIBrix, prefix-cache, as a peer to measure against."""

from __future__ import annotations

import numpy as np

from forebay.fleet.base import Demand, Vector
from forebay.fleet.policies.choice import least
from forebay.fleet.state import Fleet

IMBALANCE = 8
DEVIATIONS = 1.0


class Aibrix:
    """Is the load uneven, the fewest requests; else the longest match that is not overloaded.

    Uneven: the numbers of requests differ by more than 8. Overloaded: more requests than the mean and one
    standard deviation. Equal matches are told apart by their requests; without a match, the fewest requests.
    Source: the README of its gateway's routing algorithms.
    """

    def choose(self, demand: Demand, cached: Vector, fleet: Fleet, now_s: float) -> int:
        requests = fleet.requests
        loads = requests if fleet.all_available else requests[fleet.available]
        fewest = least(requests, fleet)
        if float(loads.max()) - float(loads.min()) > IMBALANCE:
            return fewest
        limit = float(loads.mean()) + DEVIATIONS * float(loads.std())
        fits = (cached > 0) & (requests <= limit) & fleet.available
        if not fits.any():
            return fewest
        # The longest match, and of those the fewest requests: a request less than one block.
        return int(np.where(fits, requests - cached * (1 + float(loads.max())), np.inf).argmin())
