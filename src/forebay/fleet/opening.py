"""How many requests a replica works on at once, as tokens show within seconds."""

from __future__ import annotations

import math

MIN_PATIENCE_S, PATIENCE = 1.0, 4.0
"""After this many first waits without another start, the replica starts no more of its requests."""
FLOW, FLAT = 2, 3
"""Tokens per request in a measurement of the flow; and how many measurements in a row must find no rise,
since one may fall into a pause."""
FULL = 0.75
"""Answers count if at least this share of the limit was there."""


class Rate:
    """Answers per second over `wanted` of them, after `skip` earlier ones. Times are passed in."""

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
        """Leave out a time without requests."""
        self._since_s += seconds

    @property
    def count(self) -> int:
        """How many answers count so far."""
        return max(0, self.seen - self._skip)

    @property
    def complete(self) -> bool:
        return self.count >= self._wanted

    @property
    def per_s(self) -> float:
        return self.count / max(self.last_s - self._since_s, 1e-9)


class Opening:
    """What tokens show since the replica was first sent more than before."""

    def __init__(self) -> None:
        self.begun = 0
        """The most requests with a first token at a time; 0 before any."""
        self.slots = math.inf
        """How many it works on at a time, once others had to wait."""
        self.per_s = 0.0
        """Tokens per second at the last limit."""
        self.flat = 0
        """Measurements in a row without a rise."""
        self._first_s = math.inf
        self._grew_s = -math.inf
        self._gaps_s, self._gaps = 0.0, 0

    def add(self, begun: int, waited_s: float, now_s: float) -> None:
        self._first_s = min(self._first_s, waited_s)
        if begun > self.begun:
            self.begun, self._grew_s = begun, now_s

    def flowed(self, begun: int, gap_s: float, tokens: int = 1) -> float | None:
        """Return tokens per second of `begun` requests, or None until enough gaps were seen. (Tokens of many
        requests arrive together, so counting them would take longer.)"""
        self._gaps_s += gap_s
        self._gaps += tokens
        if self._gaps < FLOW * begun:
            return None
        mean_s = self._gaps_s / self._gaps
        self.interrupt()
        return begun / max(mean_s, 1e-9)

    def interrupt(self) -> None:
        """Discard the measurement: the replica does not have its full number."""
        self._gaps_s, self._gaps = 0.0, 0

    def full(self, there: int, limit: int, now_s: float) -> bool:
        """Whether the replica leaves some requests waiting and starts no more."""
        if not self.begun or there < FULL * limit or there <= self.begun:
            return False
        if now_s - self._grew_s <= max(MIN_PATIENCE_S, PATIENCE * self._first_s):
            return False
        self.slots = self.begun
        return True
