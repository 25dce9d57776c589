"""Confidence intervals of differences between two runs, from their requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES = 2000
AT_ONCE = 2_000_000
"""Values drawn at a time: 16 MB."""


def bootstrap_difference(
    before: Sequence[float],
    after: Sequence[float],
    percent: float | None,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """The interval of (statistic of `after`) − (statistic of `before`); blocks.

    `percent`: the percentile; None: the mean. Both inputs are non-empty and ordered by when requests were
    due. Neighbours share a queue and are alike, so whole blocks of √n neighbours are drawn from the samples
    as a ring (the circular block bootstrap of Politis and Romano, 1992). The bounds are percentiles of the
    differences. The same seed gives the same interval.
    """
    import numpy as np

    generator = np.random.default_rng(seed)
    drawn = [_statistics(np.asarray(values, float), percent, generator) for values in (before, after)]
    beyond = (1 - confidence) / 2 * 100
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
