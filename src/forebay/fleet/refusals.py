"""How many requests a busy replica takes, and whether it is shut."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

ANYHOW = 0.25
"""From this share of refusals on, they do not depend on the number of requests. If as few are answered, the
replica is shut.
"""
CALLS = 16
REFUSALS_FADE = 1 / CALLS
IGNORE_S = 60.0
ROUNDS, MAX_ROUNDS = 2, 64
"""Rounds of answers until one more is tried, doubled with each refusal, including the first."""

PROOF = 3
SEEN = 16

Refusal = Literal["one too many", "passing", "shut"]


class Refusals:
    """How many requests a replica takes that refuses some.

    The first refusal sets the limit to the number there. After some rounds of answers one more is tried, and
    another after each round (additive increase: Chiu and Jain, 1989); if it is refused, the next after twice
    as many rounds. A single refusal below a proven number is ignored. A quarter of refusals lowers the limit,
    at most to half of the first one: then the replica refuses for another reason, such as a dead server
    behind a proxy, and for a minute refusals change nothing.

    Refusals of one source, such as a client of the gateway, may be its own fault. Without a limit, those
    below the number at which other sources got their last answers are ignored, unless another source is
    refused within `CALLS` answers, or nothing is answered during `CALLS` refusals.
    """

    def __init__(self, seen: int = 0, ignored_until_s: float = -math.inf) -> None:
        self.seen = seen
        self._most = math.inf
        self._proven = 0.0
        self._answers: deque[tuple[str | None, int]] = deque(maxlen=SEEN)
        self._answered_since: dict[str | None, int] = {}
        self._in_a_row = 0
        self._full = 0
        self._rounds = self._due = ROUNDS
        self._at_first = math.inf
        self._share = 0.0
        self._calls = 0
        self._first_s = self._refused_s = self._changed_s = self._hold_s = -math.inf
        self._ignored_until_s = ignored_until_s
        self.checked = True
        """Whether probes need not check the limit: none was set, or a probe was refused, too."""
        self.probes = 0

    @property
    def most(self) -> float:
        return self._most

    def refused(
        self, others: int, sent_s: float, now_s: float, wait_s: float, source: str | None = None
    ) -> Refusal:
        """Count a refusal, with `others` there; one more is tried after `wait_s` at the earliest.

        Returns `one too many` if it takes the others, `shut` if it takes none at present, else `passing`.
        """
        self.seen += 1
        together = sent_s < self._refused_s
        if not together:
            self._count(1.0)
            self._refused_s = now_s
        often = self._share >= ANYHOW
        known = self._known_by_others(source, together=together)
        if known and math.isinf(self._most):
            kind: Refusal = "one too many" if others >= known else "passing"
        elif not others:
            kind = "shut"
        elif others >= self._proven:
            kind = "one too many"
        else:
            kind = "shut" if often else "passing"
        if now_s < self._ignored_until_s:
            return "passing"
        if kind == "passing":
            return kind
        if others < self._proven or math.isinf(self._most):
            self.checked, self.probes = False, 0
        if math.isinf(self._most):
            self._at_first, self._first_s = others + 1.0, self._refused_s
        elif self._refused_s == self._first_s:
            # Of many sent at once, the last refusal shows how many it took.
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
                self._rounds = min(2 * self._rounds, MAX_ROUNDS)
            self._due = self._rounds
        if low and self._calls >= 2 * CALLS and often and self._share <= 1 - ANYHOW:
            self._most, self._ignored_until_s = math.inf, now_s + IGNORE_S
        return kind

    def _known_by_others(self, source: str | None, *, together: bool) -> int:
        self._answered_since.pop(source, None)
        if any(answers < CALLS for answers in self._answered_since.values()) or self._in_a_row >= CALLS:
            self._answers.clear()
        self._answered_since[source] = 0
        if len(self._answered_since) > SEEN:
            del self._answered_since[next(iter(self._answered_since))]
        self._in_a_row += not together
        found = sorted(there for by, there in self._answers if by != source)
        return found[-PROOF] if len(found) >= PROOF else 0

    def answered(self, there: int, sent_s: float, now_s: float, source: str | None = None) -> None:
        self._count(0.0)
        self._answers.append((source, there))
        self._in_a_row = 0
        self._answered_since = {by: n + 1 for by, n in self._answered_since.items() if n < CALLS}
        if there < self._most or sent_s < self._changed_s:
            return
        self._full += 1
        if self._full < min(self._most, PROOF):
            return
        if self._proven < self._most:
            self._proven = self._most
            if self._due == 1:
                # The extra request was accepted.
                self._rounds = ROUNDS
        if self._full >= self._due * self._most and now_s >= self._hold_s:
            self._most += 1
            self._full, self._due, self._changed_s = 0, 1, now_s
            if self._most > 2 * self._at_first:
                self._most, self._proven = math.inf, 0.0

    def _count(self, refused: float) -> None:
        self._calls += 1
        self._share += (refused - self._share) * REFUSALS_FADE
