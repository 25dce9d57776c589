"""The better of two that are drawn."""

from __future__ import annotations

from random import Random

from forebay.fleet.base import Demand, Vector
from forebay.fleet.state import Fleet


class PowerOfTwo:
    """Of two available replicas drawn at random, the one with fewer requests in flight.

    Mitzenmacher, The power of two choices in randomized load balancing, 1996.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, demand: Demand, cached: Vector, fleet: Fleet, now_s: float) -> int:
        numbers = fleet.available.nonzero()[0]
        if len(numbers) == 1:
            return int(numbers[0])
        one = int(self._random.random() * len(numbers))
        other = int(self._random.random() * (len(numbers) - 1))
        other += other >= one
        first, second = int(numbers[one]), int(numbers[other])
        requests = fleet.requests
        return first if requests[first] <= requests[second] else second
