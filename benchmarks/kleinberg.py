"""Kleinberg's bursts, offline: the two-state automaton over batches (Kleinberg 2002, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

SCALING = 3.0
"""Ratio of the share of posts in the bursting state to the usual share."""
GAMMA = 1.0
"""Cost of entering the bursting state, in units of ln(number of batches)."""
MAX_SHARE = 0.9999


@dataclass(frozen=True, slots=True)
class Interval:
    """Batches `first` up to `end` in the bursting state, and the evidence for it in nats."""

    first: int
    end: int
    weight: float


def bursts(counts: Doubles, totals: Doubles) -> list[list[Interval]]:
    """The bursts of each term. `counts`: terms by batches; `totals`: posts per batch, at least the counts.

    The cheapest sequence of the two states, by dynamic programming over the whole stream.
    """
    terms, batches = counts.shape
    usual = np.clip(counts.sum(axis=1) / max(totals.sum(), 1), 1e-12, MAX_SHARE)
    raised = np.minimum(usual * SCALING, MAX_SHARE)

    def cost(share: Doubles) -> Doubles:
        return -(counts * np.log(share)[:, None] + (totals - counts) * np.log1p(-share)[:, None])

    low, high = cost(usual), cost(raised)
    enter = GAMMA * np.log(max(batches, 2))
    best_low, best_high = np.zeros(terms), np.full(terms, np.inf)
    from_high, from_low = np.zeros((batches, terms), bool), np.zeros((batches, terms), bool)
    for batch in range(batches):
        from_high[batch] = best_high < best_low
        from_low[batch] = best_low + enter < best_high
        best_low, best_high = (
            np.minimum(best_low, best_high) + low[:, batch],
            np.minimum(best_high, best_low + enter) + high[:, batch],
        )
    state = best_high < best_low
    states = np.zeros((batches, terms), bool)
    for batch in range(batches - 1, -1, -1):
        states[batch] = state
        state = np.where(state, ~from_low[batch], from_high[batch])
    gain = low - high
    found: list[list[Interval]] = []
    for term in range(terms):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], states[:, term].astype(np.int8), [0]])))
        pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        found.append([Interval(a, b, float(gain[term, a:b].sum())) for a, b in pairs])
    return found
