"""Forecast arrivals: level, trend, and the shape of days and weeks.

Four forecasts run in parallel: the present level continues, the load returns to its mean of 20 minutes, the
trend continues for a while, and the level changes as on earlier days. The one with the smallest recent error
wins; its errors give the margin.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Annotated

from pydantic import Field

from forebay.fleet.autoscale.base import Amount

DAY_S = 86_400.0
DAYS = 7
SLOT_S = 300.0
SLOTS = int(DAY_S / SLOT_S)
SHORT_S, LONG_S = 15.0, 300.0
MEAN_S = 1200.0
KEEP_S = 3600.0
JUMP = 3.0
FADE = 0.02
ERRORS = 1440
MIN_ERRORS = 24
LEARNED = 0.5
NAMES = ("level", "mean", "trend", "days")
TREND_S = 120.0


class Arrivals:
    """Recent work per second. Work is in replica-seconds, so rates are in busy replicas."""

    def __init__(self, keep_s: float) -> None:
        self.keep_s = keep_s
        self._ends: list[float] = []
        self._sums: list[float] = []
        self._noise = 0.0
        self._last = 0.0
        self._step_s = 1.0

    def add(self, begin_s: float, end_s: float, work_s: float) -> None:
        if not self._ends:
            self._ends.append(begin_s)
            self._sums.append(0.0)
        self._ends.append(end_s)
        self._sums.append(self._sums[-1] + work_s)
        # Half of the squared difference of neighbours: the variance, whatever the level.
        change = (work_s - self._last) ** 2 / 2
        self._noise += (change - self._noise) * FADE
        self._last, self._step_s = work_s, end_s - begin_s
        if len(self._ends) > 256 and self._ends[len(self._ends) // 2] < end_s - self.keep_s:
            half = len(self._ends) // 2
            base = self._sums[half]
            self._ends = self._ends[half:]
            self._sums = [each - base for each in self._sums[half:]]

    def until(self, moment_s: float) -> float:
        ends, sums = self._ends, self._sums
        at = bisect_left(ends, moment_s)
        if at == 0:
            return 0.0
        if at == len(ends):
            return sums[-1]
        share = (moment_s - ends[at - 1]) / (ends[at] - ends[at - 1])
        return sums[at - 1] + share * (sums[at] - sums[at - 1])

    def between(self, begin_s: float, end_s: float) -> float:
        if not self._ends or end_s <= begin_s:
            return 0.0
        return max(self.until(end_s) - self.until(begin_s), 0.0)

    def mean(self, now_s: float, span_s: float) -> float:
        if not self._ends:
            return 0.0
        begin_s = max(now_s - span_s, self._ends[0])
        return self.between(begin_s, now_s) / max(now_s - begin_s, 1e-9)

    def chance(self, span_s: float) -> float:
        return math.sqrt(self._noise / max(self._step_s * span_s, 1e-9))

    def level(self, now_s: float) -> tuple[float, bool]:
        """The present rate, and whether it has just jumped: the mean over minutes, unless the last seconds
        differ from it by more than chance.
        """
        found, jumped = self.mean(now_s, LONG_S), False
        for span_s in (60.0, SHORT_S):
            mean = self.mean(now_s, span_s)
            if abs(mean - found) > JUMP * self.chance(span_s):
                found, jumped = mean, True
        return found, jumped


@dataclass(frozen=True, slots=True)
class SeasonMemory:
    """Mean rates in slots of five minutes. `work_s` arrived in `span_s` of the current slot."""

    days: Annotated[tuple[Amount | None, ...], Field(min_length=SLOTS, max_length=SLOTS)]
    weeks: Annotated[tuple[Amount | None, ...], Field(min_length=SLOTS * DAYS, max_length=SLOTS * DAYS)]
    slot: int | None
    work_s: Amount
    span_s: Amount


@dataclass(frozen=True, slots=True)
class ForecastMemory:
    errors: Annotated[tuple[Amount, ...], Field(min_length=len(NAMES), max_length=len(NAMES))]
    season: SeasonMemory


class Season:
    """Mean rates by time of day, and of week after one week; by the wall clock."""

    def __init__(self) -> None:
        self._days: list[float | None] = [None] * SLOTS
        self._weeks: list[float | None] = [None] * (SLOTS * DAYS)
        self._slot: int | None = None
        self._sum = self._span_s = 0.0

    def add(self, begin_s: float, end_s: float, work_s: float) -> None:
        slot = int(begin_s // SLOT_S)
        if slot != self._slot:
            self._close()
            self._slot = slot
        self._sum += work_s
        self._span_s += end_s - begin_s

    def _close(self) -> None:
        if self._slot is not None and self._span_s > SLOT_S / 2:
            mean = self._sum / self._span_s
            for known, at in ((self._days, self._slot % SLOTS), (self._weeks, self._slot % (SLOTS * DAYS))):
                old = known[at]
                known[at] = mean if old is None else old + LEARNED * (mean - old)
        self._sum = self._span_s = 0.0

    def rate(self, moment_s: float) -> float | None:
        """The mean rate at this time of earlier days, interpolated; None if unknown."""
        at = moment_s / SLOT_S - 0.5
        low, share = math.floor(at), at - math.floor(at)
        one, other = self._known(low), self._known(low + 1)
        if one is None or other is None:
            return None
        return one + share * (other - one)

    def remembers(self) -> SeasonMemory:
        days, weeks = (tuple(map(_rounded, known)) for known in (self._days, self._weeks))
        return SeasonMemory(days, weeks, self._slot, self._sum, self._span_s)

    def recall(self, memory: SeasonMemory) -> None:
        self._days, self._weeks = list(memory.days), list(memory.weeks)
        self._slot, self._sum, self._span_s = memory.slot, memory.work_s, memory.span_s

    def _known(self, slot: int) -> float | None:
        day, week = self._days[slot % SLOTS], self._weeks[slot % (SLOTS * DAYS)]
        return day if week is None or day is None else (day + week) / 2


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else float(f"{rate:.4g}")


class Forecast:
    """The mean rate over the next `window_s`, and how far it may exceed the expected one.

    `wall_ahead_s`: from the clock of all moments to the wall clock.
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self.arrivals = Arrivals(max(KEEP_S, 2 * window_s))
        self.season = Season()
        self.wall_ahead_s = 0.0
        self._errors = [0.0] * len(NAMES)
        # Due time, window, forecasts and scale of each open forecast.
        self._open: list[tuple[float, float, tuple[float, ...], float]] = []
        self._seen: deque[tuple[float, float]] = deque()
        self._excess: list[float] = []
        self._rates: list[float] = []
        self._mean = 0.0
        self._count = 0

    def add(self, begin_s: float, end_s: float, work_s: float) -> None:
        self.arrivals.add(begin_s, end_s, work_s)
        self.season.add(begin_s + self.wall_ahead_s, end_s + self.wall_ahead_s, work_s)
        self._count += 1
        self._mean += (work_s / (end_s - begin_s) - self._mean) / min(self._count, 2000)
        while self._open and self._open[0][0] <= end_s:
            due_s, window_s, guesses, scale = heappop(self._open)
            found = self.arrivals.between(due_s - window_s, due_s) / window_s
            best = self.best
            for at, guess in enumerate(guesses):
                self._errors[at] += (abs(found - guess) - self._errors[at]) * FADE
            self._remember((found - guesses[best]) / scale, found)

    def resize(self, window_s: float) -> None:
        self.window_s = window_s
        self.arrivals.keep_s = max(self.arrivals.keep_s, 2 * window_s)

    def remembers(self) -> ForecastMemory:
        return ForecastMemory(tuple(self._errors), self.season.remembers())

    def recall(self, memory: ForecastMemory) -> None:
        self._errors = list(memory.errors)
        self.season.recall(memory.season)

    def resume(self) -> None:
        self.arrivals = Arrivals(self.arrivals.keep_s)
        self._open.clear()

    @property
    def best(self) -> int:
        return self._errors.index(min(self._errors))

    def rates(self, now_s: float, ahead_s: float) -> tuple[float, ...]:
        level, jumped = self.arrivals.level(now_s)
        trend = 0.0
        if not jumped:
            earlier = self.arrivals.mean(now_s - TREND_S, TREND_S)
            trend = (self.arrivals.mean(now_s, TREND_S) - earlier) / TREND_S * min(ahead_s, TREND_S)
        mean = self.arrivals.mean(now_s, MEAN_S)
        wall_s = now_s + self.wall_ahead_s
        then, here = self.season.rate(wall_s + ahead_s), self.season.rate(wall_s)
        turn = 0.0 if then is None or here is None else then - here
        return tuple(max(each, 0.0) for each in (level, mean, level + trend, level + turn))

    def rate(self, now_s: float, ahead_s: float) -> float:
        return self.rates(now_s, ahead_s)[self.best]

    def expect(self, now_s: float) -> float:
        guesses = self.rates(now_s, self.window_s / 2)
        best = guesses[self.best]
        heappush(self._open, (now_s + self.window_s, self.window_s, guesses, self._scale(best)))
        return best

    def above(self, expected: float, share: float) -> float:
        """By how much the rate over the next `window_s` exceeds `expected` with probability `share`."""
        if len(self._excess) < MIN_ERRORS:
            return 2 * self.arrivals.chance(self.window_s)
        at = min(int((1 - share) * len(self._excess)), len(self._excess) - 1)
        above = self._excess[at] * self._scale(expected)
        # Not above the largest recent rate: after one jump there is no margin for a second.
        return max(min(above, self._rates[-1] - expected), 0.0)

    def _scale(self, rate: float) -> float:
        return math.sqrt(max(rate + 0.1 * self._mean, 1e-9))

    def _remember(self, error: float, found: float) -> None:
        self._seen.append((error, found))
        insort(self._excess, error)
        insort(self._rates, found)
        if len(self._seen) > ERRORS:
            old, rate = self._seen.popleft()
            del self._excess[bisect_left(self._excess, old)]
            del self._rates[bisect_left(self._rates, rate)]
