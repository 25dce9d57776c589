"""The best of the available replicas, by one number each."""

from __future__ import annotations

import numpy as np

from forebay.fleet.base import Vector
from forebay.fleet.state import Fleet


def least(costs: Vector, fleet: Fleet) -> int:
    """The available replica with the least cost; of equals the one with the lowest number."""
    if fleet.all_available:
        return int(costs.argmin())
    return int(np.where(fleet.available, costs, np.inf).argmin())
