"""A histogram of durations with bounded memory and bounded relative error, mergeable.

Buckets grow by a fixed factor (the idea of DDSketch: Masson, Rim, Lee, VLDB 2019), so a quantile is exact to
within the relative error whatever the range of the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

RELATIVE_ERROR = 0.01
SMALLEST_S = 1e-6
LARGEST_S = 1e5


class LatencyHistogram:
    """Counts of durations in seconds. Values are clamped to 1 µs … 10^5 s. Not thread-safe."""

    __slots__ = ("_counts", "_log_gamma", "count", "max_s", "sum_s")

    def __init__(self) -> None:
        self._log_gamma = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
        self._counts: dict[int, int] = {}
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0

    def add(self, value_s: float) -> None:
        clamped = min(max(value_s, SMALLEST_S), LARGEST_S)
        bucket = math.ceil(math.log(clamped) / self._log_gamma)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.sum_s += value_s
        self.max_s = max(self.max_s, value_s)

    def extend(self, values_s: Iterable[float]) -> None:
        for value_s in values_s:
            self.add(value_s)

    def merge(self, other: LatencyHistogram) -> None:
        for bucket, n in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + n
        self.count += other.count
        self.sum_s += other.sum_s
        self.max_s = max(self.max_s, other.max_s)

    def quantile_s(self, q: float) -> float:
        """The `q` quantile (0 … 1) within 1 % of the true one; 0.0 where nothing was added."""
        if self.count == 0:
            return 0.0
        rank = max(1, math.ceil(q * self.count))
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return 2 * math.exp(bucket * self._log_gamma) / (math.exp(self._log_gamma) + 1)
        return self.max_s
