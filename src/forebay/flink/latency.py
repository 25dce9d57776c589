"""Latencies of one subtask: quantiles in bounded memory, and buckets for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from forebay.flink.jvm_task import number_gauge

if TYPE_CHECKING:
    from pyflink.metrics import MetricGroup

RELATIVE_ERROR = 0.01
SMALLEST_S = 1e-6
LARGEST_S = 1e5
WINDOW_S = 30.0
LOG_GAMMA = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 1800.0)


class LatencyHistogram:
    """Counts of durations in bounded memory. One thread may call `add`, another everything else.

    Buckets grow by a fixed factor (DDSketch: Masson, Rim, Lee, VLDB 2019); values are clamped to 1 µs … 10^5
    s.
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self, counts: dict[int, int] | None = None) -> None:
        self._counts = counts or {}
        self.sum_s = 0.0

    def add(self, value_s: float, count: int = 1) -> None:
        value_s = min(max(value_s, SMALLEST_S), LARGEST_S)
        bucket = _bucket(value_s)
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.sum_s += value_s * count

    def extend(self, values_s: Iterable[float]) -> None:
        for value_s in values_s:
            self.add(value_s)

    def copy(self) -> LatencyHistogram:
        return LatencyHistogram(self._counts.copy())

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        before = earlier._counts
        return LatencyHistogram({b: n - before.get(b, 0) for b, n in self._counts.copy().items()})

    @property
    def count(self) -> int:
        return sum(self._counts.copy().values())

    def quantile_s(self, q: float) -> float:
        counts = self._counts.copy()
        rank = max(1, math.ceil(q * sum(counts.values())))
        seen = 0
        for bucket in sorted(counts):
            seen += counts[bucket]
            if seen >= rank:
                return 2 * math.exp(bucket * LOG_GAMMA) / (math.exp(LOG_GAMMA) + 1)
        return 0.0

    def up_to(self, bounds_s: Iterable[float]) -> list[int]:
        """How many values are at most each bound, in ascending order; a value may be 2 % above it."""
        buckets = sorted(self._counts.copy().items())
        found, at, seen = [], 0, 0
        for bound_s in bounds_s:
            last = _bucket(bound_s)
            while at < len(buckets) and buckets[at][0] <= last:
                seen += buckets[at][1]
                at += 1
            found.append(seen)
        return found


def _bucket(value_s: float) -> int:
    return math.ceil(math.log(value_s) / LOG_GAMMA)


class RecentLatency:
    """What was added to `latency` in the last 30 to 60 s. For one thread, which looks at least that often."""

    def __init__(self, latency: LatencyHistogram) -> None:
        self._latency = latency
        self._older = self._newer = latency.copy()
        self._turned_s = 0.0

    def at(self, now_s: float) -> LatencyHistogram:
        found = self._latency.since(self._older)
        if now_s - self._turned_s >= WINDOW_S:
            self._turned_s = now_s
            self._older, self._newer = self._newer, self._latency.copy()
        return found


class LatencyBuckets:
    """A latency as counters with the label `le`, for Prometheus' `histogram_quantile`.

    Flink exports its own histograms as quantiles of each subtask, which cannot be combined.
    """

    def __init__(self, group: MetricGroup, name: str, latency: LatencyHistogram) -> None:
        self._latency = latency
        of = group.add_group(name)
        bounds = [*map(_shown, BOUNDS_S), "+Inf"]
        self._counters = [of.add_group("le", bound).counter("bucket") for bound in bounds]
        self._counters.append(of.counter("count"))
        self._sum = number_gauge(of, "sum")
        self._flushed = [0] * len(self._counters)

    def flush(self) -> None:
        counts = self._latency.up_to((*BOUNDS_S, LARGEST_S))
        counts.append(counts[-1])
        if counts == self._flushed:
            return
        for counter, now, before in zip(self._counters, counts, self._flushed, strict=True):
            if now != before:
                counter.inc(now - before)
        self._flushed = counts
        self._sum.update(self._latency.sum_s)


def _shown(bound_s: float) -> str:
    return f"{bound_s:g}"
