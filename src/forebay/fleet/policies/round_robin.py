"""Each in its turn."""

from __future__ import annotations

from forebay.fleet.base import Demand, Vector
from forebay.fleet.state import Fleet


class RoundRobin:
    """The available replica that follows the last one chosen."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, demand: Demand, cached: Vector, fleet: Fleet, now_s: float) -> int:
        available = fleet.available
        for _ in range(fleet.count):
            self._last = (self._last + 1) % fleet.count
            if available[self._last]:
                break
        return self._last
