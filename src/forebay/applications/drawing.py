"""Axes of time for drawings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from forebay.applications.page import Html, element

STEPS_S = (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 12 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
STEPS_COUNTED = tuple(digit * 10**zeros for zeros in range(9) for digit in (1, 2, 5))
MAX_LINES = 12
COLOURS = ("var(--a)", "var(--b)", "var(--c)", "var(--d)", "var(--e)")


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Times from `start_ms` to `end_ms` on the pixels from `left` to `right`; others lie at the ends.

    Not `timed`: a second is a thing of a stream, and its number is shown.
    """

    start_ms: float
    end_ms: float
    left: float
    right: float
    timed: bool = True

    def x(self, time_ms: float) -> float:
        span = max(self.end_ms - self.start_ms, 1)
        share = min(max((time_ms - self.start_ms) / span, 0), 1)
        return round(self.left + share * (self.right - self.left), 1)

    def lines(self, top: float, bottom: float) -> Iterator[Html]:
        """Lines at round times, and the times above them."""
        steps = STEPS_S if self.timed else STEPS_COUNTED
        span_s = max((self.end_ms - self.start_ms) / 1000, 1)
        step_s = next((step for step in steps if span_s / step <= MAX_LINES), span_s / MAX_LINES)
        form = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 86_400 else "%Y-%m-%d"
        at_s = -(-self.start_ms / 1000 // step_s) * step_s
        while at_s * 1000 <= self.end_ms:
            x = self.x(at_s * 1000)
            said = _said(at_s, form) if self.timed else f"{at_s:,.0f}"
            yield element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid")
            yield element("text", said, x=x, y=top - 6, text_anchor="middle", class_="soft")
            at_s += step_s


def axis_over(times_ms: Sequence[float], left: float, right: float) -> TimeAxis:
    """An axis over all times. Where a few lie years away from the rest, it is one over the rest."""
    ordered = sorted(times_ms) or [0.0]
    low, high = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    room = max(high - low, 1000.0)
    return TimeAxis(max(ordered[0], low - room), min(ordered[-1], high + room), left, right)


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _said(at_s: float, form: str) -> str:
    try:
        return datetime.fromtimestamp(at_s, timezone.utc).strftime(form)
    except (ValueError, OverflowError, OSError):
        return ""
