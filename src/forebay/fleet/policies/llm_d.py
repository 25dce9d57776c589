"""The published rule of llm-d's scheduler, as a peer to measure against."""

from __future__ import annotations

from random import Random

import numpy as np

from forebay.fleet.base import Demand, Vector
from forebay.fleet.state import Fleet

QUEUE_WEIGHT = 2.0
KV_WEIGHT = 2.0
PREFIX_WEIGHT = 3.0


class LlmD:
    """The highest sum of three scores from 0 to 1; of equals any.

    Queue (2): from 1 for the shortest engine queue to 0 for the longest, as reported. KV cache (2): the share
    that is free, as reported. Prefix (3): the share of the prompt's blocks that the replica holds. Source:
    the documentation of llm-d's scheduler and of the Gateway API inference extension.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, demand: Demand, cached: Vector, fleet: Fleet, now_s: float) -> int:
        waiting = fleet.reported_waiting
        longest, shortest = float(waiting.max()), float(waiting.min())
        scores = KV_WEIGHT * (1 - fleet.reported_kv)
        if longest > shortest:
            scores = scores + QUEUE_WEIGHT * (longest - waiting) / (longest - shortest)
        scores = scores + (PREFIX_WEIGHT / demand.prompt_tokens) * cached
        if not fleet.all_available:
            scores = np.where(fleet.available, scores, -np.inf)
        best = (scores == scores.max()).nonzero()[0]
        return int(best[int(self._random.random() * len(best))])
