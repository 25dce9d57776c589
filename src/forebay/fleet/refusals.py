"""How many requests a replica takes that refuses some, and whether it is shut."""

from __future__ import annotations

import math
from typing import Literal

ANYHOW = 0.25
"""Share of refusals that shows that the replica is shut, or refuses for another reason than their number.
Where as few are answered it is shut."""
CALLS = 16
REFUSALS_FADE = 1 / CALLS
IGNORE_S = 60.0
ROUNDS, MOST_ROUNDS = 2, 64
"""Rounds of answers until one more is tried: doubled with each that is refused, the first included."""

PROOF = 3
"""So many answers, with all places taken and no refusal between, show that it takes so many."""

Refusal = Literal["one too many", "passing", "shut"]


class Refusals:
    """How many requests a replica takes that refuses some. Moments are passed in.

    The first one too many tells: it takes as many as it held then. After some rounds of answers with so many
    there may be one more, and after each whole round another one (additive increase: Chiu and Jain, 1989).
    Where that one is refused, the next is tried after twice as many rounds (exponential backoff), so that
    refusals become rare where the limit is fixed.

    A single refusal of fewer than it was shown to take says nothing of their number. A quarter of refusals
    lowers it, until there are half as many as at first: a replica that goes on refuses for another
    reason, such as a dead server behind a proxy, and for a minute refusals change nothing.
    """

    def __init__(self, seen: int = 0) -> None:
        self.seen = seen
        """How many there were."""
        self._most = math.inf
        self._proven = 0.0
        self._full = 0
        self._rounds = self._due = ROUNDS
        self._at_first = math.inf
        self._share = 0.0
        self._calls = 0
        self._first_s = self._refused_s = self._changed_s = self._hold_s = self._ignored_until_s = -math.inf

    @property
    def most(self) -> float:
        """How many requests there may be; at least one."""
        return self._most

    def refused(self, others: int, sent_s: float, now_s: float, wait_s: float) -> Refusal:
        """One that was sent at a moment was refused, with so many others there. One more than now is tried
        after `wait_s` at the earliest.

        Gives what it shows: `one too many`: it takes the others; `passing`: nothing for certain; `shut`: it
        takes none at present.
        """
        self.seen += 1
        together = sent_s < self._refused_s
        if not together:
            self._count(1.0)
            self._refused_s = now_s
        often = self._share >= ANYHOW
        if not others:
            kind: Refusal = "shut"
        elif others >= self._proven:
            kind = "one too many"
        else:
            kind = "shut" if often else "passing"
        if now_s < self._ignored_until_s or kind == "passing":
            return kind
        if math.isinf(self._most):
            self._at_first, self._first_s = others + 1.0, self._refused_s
        elif self._refused_s == self._first_s:
            # Of many that were sent at once the last one refused shows how many it took.
            self._at_first = min(self._at_first, others + 1.0)
        was_low = self._most <= self._at_first / 2
        self._most = max(1.0, min(self._most, others))
        low = self._most <= self._at_first / 2
        if low and not was_low:
            self._calls = 0
        self._proven = min(self._proven, self._most)
        self._hold_s = max(self._hold_s, now_s + wait_s)
        self._full, self._changed_s = 0, now_s
        if kind == "shut":
            # It may take as many as before once it is open again.
            self._rounds, self._due = ROUNDS, 1
        else:
            if not together:
                self._rounds = min(2 * self._rounds, MOST_ROUNDS)
            self._due = self._rounds
        if low and self._calls >= 2 * CALLS and often and self._share <= 1 - ANYHOW:
            self._most, self._ignored_until_s = math.inf, now_s + IGNORE_S
        return kind

    def answered(self, there: int, sent_s: float, now_s: float) -> None:
        """One that was sent at a moment, as the last of so many, was not refused."""
        self._count(0.0)
        if there < self._most or sent_s < self._changed_s:
            return
        self._full += 1
        if self._full < min(self._most, PROOF):
            return
        if self._proven < self._most:
            self._proven = self._most
            if self._due == 1:
                # The one more was welcome.
                self._rounds = ROUNDS
        if self._full >= self._due * self._most and now_s >= self._hold_s:
            self._most += 1
            self._full, self._due, self._changed_s = 0, 1, now_s
            if self._most > 2 * self._at_first:
                self._most, self._proven = math.inf, 0.0

    def _count(self, refused: float) -> None:
        self._calls += 1
        self._share += (refused - self._share) * REFUSALS_FADE
