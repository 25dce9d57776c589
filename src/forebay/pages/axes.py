"""Axes of charts: where a value is drawn, and which round values are labelled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay.pages.units import moment, shown

MAX_TICKS = 6
"""Labels of a horizontal axis that fit on a phone."""
MAX_LONG_TICKS = 4
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
MINUTE, HOUR, DAY = 60, 3600, 86_400
STEPS_S = (
    *(1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 30 * DAY, 90 * DAY, 365 * DAY),
)
MIN_SPAN = 1e-300
LOG_FROM = 30.0
"""An axis is logarithmic if its largest value is this many times its smallest."""
MAX_SPAN = 1e6
"""The largest such ratio; smaller values are drawn at the axis's end."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values from `low` to `high` onto places from `start` to `end`, clamped."""

    low: float
    high: float
    start: float = 0.0
    end: float = 100.0
    log: bool = False

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        share = min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        return [(value, shown(value)) for value in self._round_values()]

    def _round_values(self) -> list[float]:
        if not self.log:
            return linear_ticks(self.low, self.high)
        decades = math.log10(self.high / self.low)
        digits = (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 3 else (1,)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
        found = [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]
        return found[:: -(-len(found) // (MAX_TICKS + 1)) or 1]


@dataclass(frozen=True, slots=True)
class TimeAxis(Axis):
    """Unix times in milliseconds, labelled in UTC."""

    def ticks(self) -> list[tuple[float, str]]:
        span_s = max((self.high - self.low) / 1000, 1)
        fitting = (
            step for step in STEPS_S if span_s / step <= (MAX_LONG_TICKS if step < MINUTE else MAX_TICKS)
        )
        step_s = next(fitting, span_s / MAX_TICKS)
        first, last = math.ceil(self.low / 1000 / step_s), math.floor(self.high / 1000 / step_s)
        times_s = [number * step_s for number in range(first, last + 1)]
        return [(time_s * 1000, moment(time_s * 1000, _time_form(time_s, step_s))) for time_s in times_s]


def _time_form(time_s: float, step_s: float) -> str:
    if step_s >= STEPS_S[-1]:
        return "%Y"
    if step_s >= DAY or (step_s >= HOUR and time_s % DAY == 0):
        return "%d %b"
    return "%H:%M:%S" if step_s < MINUTE else "%H:%M"


def linear_ticks(low: float, high: float) -> list[float]:
    span = high - low
    if not span > MIN_SPAN:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / MAX_TICKS))
    step = next(power * digit for digit in STEPS if span / (power * digit) <= MAX_TICKS)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def value_axis(
    values: Iterable[float], start: float, end: float, *, log: bool = False, room: float = 0.04
) -> Axis:
    """An axis over all values, from 0; with `log`, logarithmic if they differ much.

    `room`: the space beyond the largest value, as a share of it.
    """
    found = [value for value in values if math.isfinite(value)]
    most = max(found, default=0.0)
    least = max(min((value for value in found if value > 0), default=0.0), most / MAX_SPAN)
    if log and least > 0 and most / least >= LOG_FROM:
        return Axis(least, most * (most / least) ** room, start, end, log=True)
    return Axis(0.0, most * (1 + room) if most > 0 else 1.0, start, end)


def range_over(times_ms: Sequence[float]) -> tuple[float, float]:
    """First and last of the times, except outliers that are years away."""
    ordered = sorted(times_ms) or [0.0]
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    room = max(high - low, 1000.0)
    return max(ordered[0], low - room), min(ordered[-1], high + room)
