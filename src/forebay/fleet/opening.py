"""How many requests a replica works on at once, as its tokens show within seconds."""

from __future__ import annotations

import math

LEAST_PATIENCE_S, PATIENCE = 1.0, 4.0
"""A replica that began none for so many times the wait of the first one begins no more of what it holds."""
FLOW, FLAT = 2, 3
"""Tokens per request, or what arrives in one piece, by which it is measured how many tokens flow; and how
many such counts in a row must find no more of them: one may fall into a pause."""
FULL = 0.75
"""Answers count while there were at least so many of the limit."""


class Rate:
    """Answers per second over `wanted` of them, after `skip` that began earlier. Moments are passed in."""

    def __init__(self, wanted: float, skip: int, now_s: float) -> None:
        self._wanted = wanted
        self._skip = skip
        self._since_s = self.last_s = now_s
        self.seen = 0

    def add(self, now_s: float) -> None:
        self.seen += 1
        if self.seen <= self._skip:
            self._since_s = now_s
        self.last_s = now_s

    def pause(self, seconds: float) -> None:
        """For so long there was nothing to answer."""
        self._since_s += seconds

    @property
    def count(self) -> int:
        """How many it is of until now."""
        return max(0, self.seen - self._skip)

    @property
    def complete(self) -> bool:
        return self.count >= self._wanted

    @property
    def per_s(self) -> float:
        return self.count / max(self.last_s - self._since_s, 1e-9)


class Opening:
    """What tokens show of a replica since it was first sent more than it ever had."""

    def __init__(self) -> None:
        self.begun = 0
        """The most requests that had begun at a time; 0 as long as no first token was seen."""
        self.slots = math.inf
        """How many it works on at a time, once it has left others waiting."""
        self.per_s = 0.0
        """Tokens a second at the last number."""
        self.flat = 0
        """How often in a row no more tokens flowed than that."""
        self._first_s = math.inf
        self._grew_s = -math.inf
        self._gaps_s, self._gaps = 0.0, 0

    def add(self, begun: int, waited_s: float, now_s: float) -> None:
        self._first_s = min(self._first_s, waited_s)
        if begun > self.begun:
            self.begun, self._grew_s = begun, now_s

    def flowed(self, begun: int, gap_s: float, tokens: int = 1) -> float | None:
        """Tokens a second of `begun` requests, once it was seen of enough tokens how far they are apart.
        (Those of many requests arrive together, so that counting them would need longer.)"""
        self._gaps_s += gap_s
        self._gaps += tokens
        if self._gaps < FLOW * begun:
            return None
        mean_s = self._gaps_s / self._gaps
        self.interrupt()
        return begun / max(mean_s, 1e-9)

    def interrupt(self) -> None:
        """What flows now is not that of the full number."""
        self._gaps_s, self._gaps = 0.0, 0

    def full(self, there: int, limit: int, now_s: float) -> bool:
        """Whether the replica leaves some waiting, and begins no more than it has."""
        if not self.begun or there < FULL * limit or there <= self.begun:
            return False
        if now_s - self._grew_s <= max(LEAST_PATIENCE_S, PATIENCE * self._first_s):
            return False
        self.slots = self.begun
        return True
