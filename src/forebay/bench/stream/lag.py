"""How far a pipeline is behind its events, over time, and whether that grows."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.bench.statistics import CONFIDENCE, student_t

PARTS = 10
"""Into so many parts the time is cut: each has events of many service times, so that the means of two
neighbours hardly depend on each other."""
LEAST_EVENTS = 50
"""With fewer events a part holds too few to tell a trend from chance."""


@dataclass(frozen=True, slots=True)
class Slope:
    """How fast a lag grew, in events per second, with its 95 % interval (see `lag_slope`)."""

    per_s: float
    low: float
    high: float

    def grows(self, rate_per_s: float) -> bool:
        """Whether it surely grew, and by more than `MOST_GROWTH` of what came."""
        return self.low > 0 and self.per_s > MOST_GROWTH * rate_per_s


FIRST_EVENTS = 10
"""The latency of so many tells how long it takes until a pipeline that was empty is as full as it stays."""
SETTLE_LATENCIES = 2.0
"""So many of these latencies after the first event the lag may be looked at: latencies differ."""
LEAST_LATENCIES = 10.0
"""In so many latencies at least a lag that does not grow is told from one that does."""
MOST_GROWTH = 0.01
"""A lag that grows by less than this share of the events that come is no lag that grows: so much a rate may
differ between repeats of a run."""


def lag_at(due_s: Sequence[float], done_s: Sequence[float], at_s: float) -> int:
    """How many events were due by `at_s` and not done by then; both are sorted."""
    return bisect_right(due_s, at_s) - bisect_right(done_s, at_s)


def lag_curve(due_s: Sequence[float], done_s: Sequence[float]) -> list[tuple[float, int]]:
    """The lag after each moment at which it changed, by time; both are sorted."""
    steps = sorted([(at_s, 1) for at_s in due_s] + [(at_s, -1) for at_s in done_s])
    curve: list[tuple[float, int]] = []
    lag = 0
    for at_s, step in steps:
        lag += step
        if curve and curve[-1][0] == at_s:
            curve[-1] = (at_s, lag)
        else:
            curve.append((at_s, lag))
    return curve


def mean_lag(due_s: Sequence[float], done_s: Sequence[float], from_s: float, to_s: float) -> float:
    """The lag averaged over a time: the area below its curve, over the length."""

    def area(times_s: Sequence[float]) -> float:
        inside = times_s[: bisect_right(times_s, to_s)]
        return math.fsum(to_s - max(from_s, at_s) for at_s in inside)

    return (area(due_s) - area(done_s)) / (to_s - from_s)


def first_latency_s(due_s: Sequence[float], done_s: Sequence[float]) -> float:
    """How long the first `FIRST_EVENTS` took, the longest of them, whichever was done for which; both are
    sorted."""
    return max((done - due for due, done in zip(due_s[:FIRST_EVENTS], done_s, strict=False)), default=0.0)


def least_length_s(due_s: Sequence[float], done_s: Sequence[float]) -> float:
    """For how long events have to be due at least, so that a lag that does not grow can be told."""
    return LEAST_LATENCIES * first_latency_s(due_s, done_s)


def lag_slope(due_s: Sequence[float], done_s: Sequence[float]) -> Slope | None:
    """How fast the lag grew while events were due; None of fewer than `LEAST_EVENTS`, and where no answer
    came in the first half of the time. Both are sorted.

    A pipeline that was empty fills at first, for as long as an answer takes: that is no growth. So the time
    begins `SETTLE_LATENCIES` times `first_latency_s` after the first event, but at its half at the
    latest. From there to the last event that was due it is cut into `PARTS` equal parts, and a straight
    line laid through the means of the lag in each by least squares. Its slope has the interval
    slope ± t · s / √Σ(x − x̄)², with s² the sum of the squares left over PARTS − 2, and t of Student's
    distribution with as many degrees of freedom. Means of batches stand for single moments, since the lag of
    one moment is nearly that of the next (batch means, as in Law and Kelton, "Simulation Modeling and
    Analysis").
    """
    if len(due_s) < LEAST_EVENTS or due_s[-1] <= due_s[0]:
        return None
    half_s = (due_s[-1] - due_s[0]) / 2
    if not done_s or done_s[0] - due_s[0] > half_s:
        return None
    begin_s = due_s[0] + min(half_s, SETTLE_LATENCIES * first_latency_s(due_s, done_s))
    length_s = (due_s[-1] - begin_s) / PARTS
    means = [
        mean_lag(due_s, done_s, begin_s + part * length_s, begin_s + (part + 1) * length_s)
        for part in range(PARTS)
    ]
    middles = [(part + 0.5) * length_s for part in range(PARTS)]
    at, lag = math.fsum(middles) / PARTS, math.fsum(means) / PARTS
    spread = math.fsum((x - at) ** 2 for x in middles)
    slope = math.fsum((x - at) * (y - lag) for x, y in zip(middles, means, strict=True)) / spread
    left = math.fsum((y - lag - slope * (x - at)) ** 2 for x, y in zip(middles, means, strict=True))
    half = student_t(CONFIDENCE, PARTS - 2) * math.sqrt(left / (PARTS - 2) / spread)
    return Slope(slope, slope - half, slope + half)
