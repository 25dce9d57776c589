"""The rule of Kubernetes' horizontal pod autoscaler, which the published policies share.

wanted = ceil(replicas · metric / target), unless the ratio is within a tenth of 1; for `hold_s` the largest
wanted number holds, so that the number falls slowly. Source: the algorithm in Kubernetes' documentation.
"""

from __future__ import annotations

import math
from collections import deque

from forebay.errors import SettingError
from forebay.fleet.autoscale.base import MAX_REPLICAS

TOLERANCE = 0.1
HOLD_S = 300.0
"""Kubernetes' `stabilizationWindowSeconds` for scaling down."""
LONGEST_HOLD_S = 86_400.0
FASTEST = 2.0
"""Kubernetes at most doubles the replicas in 15 s, or adds four, whichever is more."""


class Hold:
    """The largest number wanted in the last `hold_s` seconds. `hold_s` may change; numbers dropped before do
    not return."""

    def __init__(self, hold_s: float) -> None:
        if not 0 <= hold_s <= LONGEST_HOLD_S:
            raise SettingError(f"hold_s: expected 0 to {LONGEST_HOLD_S:.0f} seconds, found {hold_s:g}")
        self.hold_s = hold_s
        self._wanted: deque[tuple[float, int]] = deque()

    def add(self, wanted: int, now_s: float) -> int:
        """Record that `wanted` are wanted; returns the number to use."""
        while self._wanted and self._wanted[0][0] < now_s - self.hold_s:
            self._wanted.popleft()
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((now_s, wanted))
        return self._wanted[0][1]


def proportional(replicas: int, metric: float, target: float) -> int:
    ratio = metric / target
    if abs(ratio - 1) <= TOLERANCE:
        return replicas
    most = max(FASTEST * replicas, replicas + 4)
    return min(math.ceil(replicas * ratio - 1e-9), int(most), MAX_REPLICAS)


def check_target(name: str, target: float) -> float:
    """Raises `SettingError` unless the target is above 0."""
    if not 0 < target < 1e12:
        raise SettingError(f"{name}: expected a target above 0, found {target:g}")
    return target
