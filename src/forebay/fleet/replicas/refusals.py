"""How many requests a replica takes that refuses some: fewer with each refusal, one more with each round."""

from __future__ import annotations

import math

SLIGHTLY, HALF = 0.9, 0.5
"""What is left after a refusal: for want of room, which tells how much there is; for too high a rate."""
ANYHOW = 0.25
"""Share of refusals that shows, with half as many requests as at first, that it is not their number."""
CALLS = 16
FADE = 1 / CALLS
IGNORE_S = 60.0


class Refusals:
    """Additive increase, multiplicative decrease (Chiu and Jain, 1989). Moments are passed in.

    A replica that refuses as many when it gets half as many requests refuses them for another reason, such as
    a dead server behind a proxy: for a minute, refusals change nothing.
    """

    def __init__(self) -> None:
        self._most = math.inf
        self._at_first = math.inf
        self._share = 0.0
        self._calls = 0
        self._ignored_until_s = -math.inf

    @property
    def most(self) -> float:
        """How many requests there may be; at least one."""
        return self._most

    def refused(self, there: int, now_s: float, *, rate: bool) -> None:
        """One of so many was refused; `rate`: as they came too fast."""
        self._count(1.0)
        if now_s < self._ignored_until_s:
            return
        if math.isinf(self._most):
            self._at_first, self._calls = float(there), 0
        self._most = max(1.0, min(self._most, there) * (HALF if rate else SLIGHTLY))
        if self._most <= self._at_first / 2 and self._calls >= CALLS and self._share >= ANYHOW:
            self._most, self._ignored_until_s = math.inf, now_s + IGNORE_S

    def answered(self) -> None:
        """One was not refused."""
        self._count(0.0)
        self._most += 1 / self._most
        if self._most > 2 * self._at_first:
            self._most = math.inf

    def _count(self, refused: float) -> None:
        self._calls += 1
        self._share += (refused - self._share) * FADE
