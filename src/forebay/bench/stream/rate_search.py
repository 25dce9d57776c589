"""Searches for the highest sustained rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forebay.bench.load.schedules import MAX_RATE_PER_S, check_rate
from forebay.bench.stream.events import EventLoad, EventSlo
from forebay.bench.stream.figures import stream_figures
from forebay.bench.stream.measure import StreamSession
from forebay.bench.stream.records import StreamRun
from forebay.bench.stream.verdict import doubts, too_little_for_lag
from forebay.errors import SettingError

RESOLUTION = 1.1
MIN_PER_S = 0.01
MAX_TRIALS = 60


class RateSearch:
    """Chooses the next rate to try, given the outcome of each trial.

    Doubles or halves until one rate is sustained and one is not, bisects in the logarithm down to
    `resolution`, then confirms the lower one. A new rate that fails is tried once more, because it may be
    chance.
    """

    def __init__(
        self,
        first_per_s: float,
        *,
        resolution: float = RESOLUTION,
        confirmations: int = 2,
        least_per_s: float = MIN_PER_S,
        most_per_s: float = MAX_RATE_PER_S,
    ) -> None:
        check_rate("--rate", first_per_s)
        if not 1 < resolution <= 2:
            raise SettingError(f"resolution: expected more than 1, and at most 2, found {resolution:g}")
        self._first = min(max(first_per_s, least_per_s), most_per_s)
        self._resolution = resolution
        self._confirmations = confirmations
        self._least, self._most = least_per_s, most_per_s
        self._sustained: list[float] = []
        self._high: float | None = None
        self._confirmed = 0
        self._failed_once = False
        self._trials = 0

    @property
    def low_per_s(self) -> float | None:
        """The highest rate that was sustained and did not fail later."""
        return self._sustained[-1] if self._sustained else None

    @property
    def high_per_s(self) -> float | None:
        return self._high

    @property
    def next_per_s(self) -> float | None:
        low, high = self.low_per_s, self._high
        if self._trials >= MAX_TRIALS:
            return None
        if low is None:
            if high is None:
                return self._first
            return None if high <= self._least else max(self._least, high / 2)
        if high is None and low < self._most:
            return min(self._most, low * 2)
        if high is not None and high > low * self._resolution:
            return math.sqrt(low * high)
        return low if self._confirmed < self._confirmations else None

    @property
    def found_per_s(self) -> float | None:
        """The highest sustained rate; None until it is confirmed."""
        over = self.next_per_s is None and self._trials < MAX_TRIALS
        return self.low_per_s if over else None

    def record(self, sustained: bool) -> None:
        rate = self.next_per_s
        assert rate is not None
        self._trials += 1
        if rate == self.low_per_s:
            if sustained:
                self._confirmed += 1
                return
            self._sustained.pop()
        elif not sustained and not self._failed_once:
            self._failed_once = True
            return
        if sustained:
            self._sustained.append(rate)
        else:
            self._high = rate
        self._confirmed = 0
        self._failed_once = False


MAX_TIMES = 8
SETTLE_S = 600.0
"""The longest wait for the backlog of a rate that was too high."""


def trials(
    session: StreamSession,
    search: RateSearch,
    load_at: Callable[[float, int, float], EventLoad],
    *,
    slo: EventSlo | None = None,
    share: float = 0.99,
) -> Iterator[tuple[Trial, StreamRun]]:
    """Try rates on one warm pipeline; yields each complete trial.

    `load_at`: the load of a rate, the trial's number and a factor of its length, which doubles up to
    `MAX_TIMES` if a trial is too short. A doubtful trial is repeated once. The search ends early if doubts
    stay, after Ctrl-C, or if the backlog takes longer than `SETTLE_S`.
    """
    number, again, times = 0, False, 1
    while (rate := search.next_per_s) is not None:
        run = session.measure(load_at(rate, number, times))
        trial = tried(run, rate, slo, share)
        if run.complete and not trial.doubts:
            search.record(trial.sustained)
        yield trial, run
        longer = trial.too_short and times < MAX_TIMES
        over = bool(trial.doubts) and not longer and (again or trial.too_short)
        if not run.complete or over or not session.settle(SETTLE_S):
            return
        again = bool(trial.doubts) and not longer
        times *= 2 if longer else 1
        number += 1


@dataclass(frozen=True, slots=True)
class Trial:
    rate_per_s: float
    sustained: bool
    why: str
    doubts: tuple[str, ...] = ()
    too_short: bool = False


def tried(run: StreamRun, rate_per_s: float, slo: EventSlo | None, share: float) -> Trial:
    """Sustained if the lag did not grow, all events have a result, and a `share` of them met the
    objective."""
    figures = stream_figures(run, slo)
    slope = figures.lag["answered"]
    if run.failure is not None:
        why = run.failure
    elif figures.lost or figures.failed:
        why = f"{figures.lost} of {figures.offered} events without a result, {figures.failed} dead letters"
    elif slope is not None and slope.grows(figures.offered_per_s):
        why = f"the lag grew by {slope.per_s:.3g}/s (95 % interval {slope.low:.3g} to {slope.high:.3g})"
    elif slo is not None and figures.goodput is not None and figures.goodput < share:
        why = (
            f"{figures.goodput:.1%} {slo.until} within {slo.within_s * 1000:g} ms, {share:.1%} were asked for"
        )
    else:
        why = ""
    too_little = None if why else too_little_for_lag(run)
    found = (*doubts(run), *(() if too_little is None else (too_little,)))
    return Trial(rate_per_s, not why and not found, why, found, too_little is not None)
