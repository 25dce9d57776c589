"""Lengths of answers with the same mean and different tails.

They are quantiles in random order instead of random draws: of a few dozen draws hardly one would be long, and
two loads with the same mean would have different totals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random
from statistics import NormalDist, fmean

from forebay.bench.load.lengths import check_tokens
from forebay.errors import SettingError

EXACT, EXPONENTIAL, HEAVY = "exact", "exponential", "heavy"
TAILS = (EXACT, EXPONENTIAL, HEAVY)
SIGMA = 1.5
"""Sigma of the heavy, log-normal tail: before the cut its mean is 3.1 times its median."""
NORMAL = NormalDist()
HALVINGS = 60


def _exponential(u: float, scale: float, limit: int) -> float:
    return -scale * math.log1p(u * math.expm1(-limit / scale))


def _heavy(u: float, scale: float, limit: int) -> float:
    whole = NORMAL.cdf(math.log(limit / scale) / SIGMA)
    return scale * math.exp(SIGMA * NORMAL.inv_cdf(u * whole))


QUANTILES: Mapping[str, Callable[[float, float, int], float]] = {EXPONENTIAL: _exponential, HEAVY: _heavy}


def tail_lengths(tail: str, count: int, mean: float, limit: int, seed: int = 0) -> list[int]:
    """`count` lengths from 1 to `limit`, with mean `mean` as closely as whole tokens allow.

    `exact`: all the same. `exponential`, `heavy`: quantiles at (i + 1/2) / count of an exponential and of a
    log-normal distribution, cut at `limit` and scaled to this mean. The seed decides their order. Raises
    `SettingError` for another tail, and if the limit leaves no room for the mean.
    """
    check_tokens("length limit", limit)
    if tail not in TAILS:
        raise SettingError(f"tail: expected {', '.join(TAILS)}, found {tail[:80]!r}")
    if not 1 <= mean <= limit / 3:
        raise SettingError(f"mean length: expected 1 to a third of the limit, {limit} tokens, found {mean:g}")
    if tail == EXACT:
        return [round(mean)] * count
    found = list(_quantiles(tail, count, mean, limit))
    Random(f"order {tail} {seed}").shuffle(found)
    return found


@lru_cache(maxsize=16)
def _quantiles(tail: str, count: int, mean: float, limit: int) -> tuple[int, ...]:
    def lengths(scale: float) -> list[int]:
        return [
            min(limit, max(1, round(QUANTILES[tail]((at + 0.5) / count, scale, limit))))
            for at in range(count)
        ]

    low, high = mean / 1000, mean * 1000
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fmean(lengths(middle)) < mean else (low, middle)
    return tuple(lengths(high))
