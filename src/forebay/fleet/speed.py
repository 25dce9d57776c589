"""How fast replicas prefill, learned from first tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forebay.fleet.routing_request import InFlightRequest, Vector

MEMORY = 4000
REFIT_EVERY = 50
TERMS = 5
RIDGE = 1e-6


@dataclass(frozen=True, slots=True)
class PrefillSpeed:
    """Coefficients of the time to first token at the head of a replica's queue, in seconds.

    `request_s` per request, `token_s` per uncached token, `pair_s` per pair of such a token and an earlier
    one (attention). Each step of a prefill also decodes: `decode_s` per token and decoding sequence,
    `context_s` per token and token of their KV. The defaults are those of a slow GPU.
    """

    request_s: float = 0.01
    token_s: float = 1e-4
    pair_s: float = 0.0
    decode_s: float = 0.0
    context_s: float = 0.0

    def seconds(self, terms: Sequence[float]) -> float:
        return (
            terms[0] * self.request_s
            + terms[1] * self.token_s
            + terms[2] * self.pair_s
            + terms[3] * self.decode_s
            + terms[4] * self.context_s
        )


@dataclass(slots=True)
class PrefillSamples:
    """Own requests without a first token at one replica, and what first tokens have shown.

    `observed_s` and `predicted_s`: recent time between first tokens. `sample`: when the last first token was
    possible, when it arrived, and its features.
    """

    queue: deque[InFlightRequest] = field(default_factory=deque)
    observed_s: float = 1.0
    predicted_s: float = 1.0
    knows_step: bool = False
    sample: tuple[float, float, tuple[float, ...]] = (0.0, 0.0, ())


def features(uncached: float, prompt_tokens: int, decoding: float, context: float) -> tuple[float, ...]:
    pairs = uncached * (prompt_tokens - uncached / 2)
    return 1.0, uncached, pairs, uncached * decoding, uncached * context


class SpeedFit:
    """Non-negative least squares with fading samples."""

    def __init__(self, start: PrefillSpeed | None = None) -> None:
        self.speed = start or PrefillSpeed()
        self._products = np.zeros((TERMS, TERMS))
        self._sums = np.zeros(TERMS)
        self._batch: list[tuple[float, ...]] = []

    def add(self, seconds: float, terms: tuple[float, ...]) -> None:
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
