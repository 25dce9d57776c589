"""How fast replicas prefill, learned from the first tokens that were seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forebay.fleet.routing_request import Vector

MEMORY = 4000
"""Samples after which an old one counts for a third: many for five coefficients, forgotten in minutes."""
REFIT_EVERY = 50
TERMS = 5
RIDGE = 1e-6
"""Keeps the equations solvable where two features have always been proportional."""


@dataclass(frozen=True, slots=True)
class PrefillSpeed:
    """What delays a first token once its prompt is at the head of the replica's queue, all in seconds.

    `request_s` per request, `token_s` per token that is not cached, `pair_s` per pair of such a token and one
    before it (attention), and, since each step of a prefill also decodes, `decode_s` per token and sequence
    that decodes and `context_s` per token and token of their KV. The values to begin with are those of a
    slow GPU; they are replaced after the first `REFIT_EVERY` samples.
    """

    request_s: float = 0.01
    token_s: float = 1e-4
    pair_s: float = 0.0
    decode_s: float = 0.0
    context_s: float = 0.0

    def seconds(self, terms: Sequence[float]) -> float:
        """The time for a prompt of these `features`."""
        return (
            terms[0] * self.request_s
            + terms[1] * self.token_s
            + terms[2] * self.pair_s
            + terms[3] * self.decode_s
            + terms[4] * self.context_s
        )


def features(uncached: float, prompt_tokens: int, decoding: float, context: float) -> tuple[float, ...]:
    """What `PrefillSpeed`'s coefficients are multiplied with, for one prompt."""
    pairs = uncached * (prompt_tokens - uncached / 2)
    return 1.0, uncached, pairs, uncached * decoding, uncached * context


class SpeedFit:
    """Non-negative least squares over what was seen, old samples fading."""

    def __init__(self, start: PrefillSpeed | None = None) -> None:
        self.speed = start or PrefillSpeed()
        self._products = np.zeros((TERMS, TERMS))
        self._sums = np.zeros(TERMS)
        self._batch: list[tuple[float, ...]] = []

    def add(self, seconds: float, terms: tuple[float, ...]) -> None:
        """A sample: prompts whose features add up to `terms` took `seconds`."""
        self._batch.append((*terms, seconds))
        if len(self._batch) >= REFIT_EVERY:
            self._refit()

    def _refit(self) -> None:
        rows = np.array(self._batch)
        self._batch.clear()
        terms, seconds = rows[:, :-1], rows[:, -1]
        fade = (1 - 1 / MEMORY) ** len(rows)
        self._products = self._products * fade + terms.T @ terms
        self._sums = self._sums * fade + terms.T @ seconds
        self.speed = PrefillSpeed(*self._solve().tolist())

    def _solve(self) -> Vector:
        """Coefficients that come out negative are held at zero, and the others solved for again."""
        scale = np.sqrt(np.diag(self._products))
        scale[scale == 0] = 1.0
        products = self._products / np.outer(scale, scale) + RIDGE * np.eye(TERMS)
        sums = self._sums / scale
        kept = np.ones(TERMS, bool)
        found = np.zeros(TERMS)
        while kept.any():
            found[:] = 0
            found[kept] = np.linalg.solve(products[np.ix_(kept, kept)], sums[kept])
            if not (found < 0).any():
                break
            kept &= found > 0
        solved: Vector = found / scale
        return solved
