"""Any replica."""

from __future__ import annotations

from random import Random

from forebay.fleet.base import Demand, Vector
from forebay.fleet.state import Fleet


class RandomChoice:
    """An available replica, each as likely as the others."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, demand: Demand, cached: Vector, fleet: Fleet, now_s: float) -> int:
        if fleet.all_available:
            return int(self._random.random() * fleet.count)
        numbers = fleet.available.nonzero()[0]
        return int(numbers[int(self._random.random() * len(numbers))])
