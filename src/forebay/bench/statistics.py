"""Percentiles, and confidence intervals of means and of differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_BEYOND = 10
"""Samples that must lie beyond a percentile: 1,000 samples for p99."""
CONFIDENCE = 0.95


def present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """`ordered` is sorted and not empty. Interpolates linearly, numpy's default (type 7 of Hyndman and Fan,
    1996)."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    if below + 1 >= len(ordered):
        return ordered[-1]
    low, high = ordered[below], ordered[below + 1]
    # Exact if both are equal, and never outside of them.
    return min(max(low + (high - low) * (place - below), low), high)


def suffices(count: int, percent: float) -> bool:
    if percent == 50:
        return count > 0
    # In thousandths of a percent, so that rounding does not decide.
    return count * round(min(percent, 100 - percent) * 1000) >= MIN_BEYOND * 100_000


@dataclass(frozen=True, slots=True)
class Interval:
    mean: float
    low: float
    high: float
    count: int


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Mean ± t · s / √n (Student 1908); None with fewer than two. Assumes normal scatter."""
    if len(values) < 2:
        return None
    mean, variance = _moments(values)
    half = student_t(CONFIDENCE, len(values) - 1) * math.sqrt(variance / len(values))
    return Interval(mean, mean - half, mean + half, len(values))


def difference_interval(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """Welch's interval (1947); None if either has fewer than two. Degrees of freedom are rounded down, which
    widens it."""
    if len(before) < 2 or len(after) < 2:
        return None
    (mean_a, variance_a), (mean_b, variance_b) = _moments(before), _moments(after)
    share_a, share_b = variance_a / len(before), variance_b / len(after)
    difference, variance = mean_b - mean_a, share_a + share_b
    half = 0.0
    if variance > 0:
        a, b = share_a / variance, share_b / variance
        freedom = 1 / (a * a / (len(before) - 1) + b * b / (len(after) - 1))
        half = student_t(CONFIDENCE, max(1, math.floor(freedom + 1e-9))) * math.sqrt(variance)
    return Interval(difference, difference - half, difference + half, len(before) + len(after))


def student_t(confidence: float, freedom: int) -> float:
    if not 0 < confidence < 1 or freedom < 1:
        raise ValueError(f"confidence {confidence}, {freedom} degrees of freedom")
    low, high = 0.0, math.pi / 2
    # Search by the angle, which is bounded; t is not.
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return math.tan(middle) * math.sqrt(freedom)
        if _share_within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle


def _share_within(angle: float, freedom: int) -> float:
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _moments(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


RESAMPLES = 2000
AT_ONCE = 2_000_000
"""16 MB."""


def bootstrap_difference(
    before: Sequence[float],
    after: Sequence[float],
    percent: float | None,
    *,
    seed: int = 0,
) -> tuple[float, float]:
    """The interval of (statistic of `after`) − (statistic of `before`); blocks. Deterministic.

    `percent` None: the mean. Both inputs are ordered by due time: neighbours share a queue, so blocks of √n
    are drawn (circular block bootstrap, Politis and Romano 1992).
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    drawn = [_statistics(np.asarray(values, float), percent, generator) for values in (before, after)]
    beyond = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(drawn[1] - drawn[0], [beyond, 100 - beyond])
    return float(low), float(high)


def _statistics(
    values: NDArray[np.float64], percent: float | None, generator: np.random.Generator
) -> NDArray[np.float64]:
    import numpy as np

    count = len(values)
    length = max(1, math.isqrt(count))
    blocks = -(-count // length)
    found = []
    left = RESAMPLES
    while left:
        rows = min(left, max(1, AT_ONCE // count))
        starts = generator.integers(0, count, (rows, blocks, 1))
        places = ((starts + np.arange(length)) % count).reshape(rows, -1)[:, :count]
        resampled = values[places]
        found.append(resampled.mean(axis=1) if percent is None else np.percentile(resampled, percent, axis=1))
        left -= rows
    return np.concatenate(found)
