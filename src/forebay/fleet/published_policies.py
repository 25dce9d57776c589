"""The published rule of SGLang's router, cache_aware, as a peer to measure against."""

from __future__ import annotations

from random import Random

import numpy as np

from forebay.fleet.policies import least
from forebay.fleet.routing_request import RoutingRequest, Vector
from forebay.fleet.state import Fleet

CACHE_THRESHOLD = 0.5
BALANCE_ABS = 32
BALANCE_REL = 1.1


class Sglang:
    """Is the load uneven, the shortest queue; else the longest match, if it is long enough.

    Uneven: the most loaded replica has more than 32 requests above the least loaded one, and more than 1.1
    times its number. Long enough: more than half of the prompt. Is no match so long, the replica with the
    smallest prefix tree takes the request. Source: the router's documentation (docs of sgl-router).
    """

    def __init__(self) -> None:
        self._tree: list[float] = []

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        if len(self._tree) != fleet.count:
            self._tree = [0.0] * fleet.count
        numbers = fleet.numbers()
        requests = fleet.requests.tolist()
        loads = [requests[number] for number in numbers]
        most, fewest = max(loads), min(loads)
        if most - fewest > BALANCE_ABS and most > fewest * BALANCE_REL:
            chosen = numbers[loads.index(fewest)]
        else:
            chosen = least(-cached, fleet)
            if cached[chosen] <= CACHE_THRESHOLD * demand.prompt_tokens:
                chosen = min(numbers, key=self._tree.__getitem__)
        self._tree[chosen] += demand.prompt_tokens - float(cached[chosen])
        return chosen


IMBALANCE = 8
DEVIATIONS = 1.0


class Aibrix:
    """Is the load uneven, the fewest requests; else the longest match that is not overloaded.

    Uneven: the numbers of requests differ by more than 8. Overloaded: more requests than the mean and one
    standard deviation. Equal matches are told apart by their requests; without a match, the fewest requests.
    Source: the README of its gateway's routing algorithms.
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        requests = fleet.requests
        loads = requests if fleet.all_available else requests[fleet.available]
        fewest = least(requests, fleet)
        if float(loads.max()) - float(loads.min()) > IMBALANCE:
            return fewest
        limit = float(loads.mean()) + DEVIATIONS * float(loads.std())
        fits = (cached > 0) & (requests <= limit) & fleet.available
        if not fits.any():
            return fewest
        # The longest match, and of those the fewest requests: a request less than one block.
        return int(np.where(fits, requests - cached * (1 + float(loads.max())), np.inf).argmin())


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

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
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


class Dynamo:
    """The least prefill blocks plus decode blocks, overlap credited in full and both weighted alike.

    Prefill blocks: the prompt tokens sent there that wait for their first token, and this prompt's, less what
    is cached of each. Decode blocks: those of all requests in flight there, and this one's. Source: Routing
    Concepts in Dynamo's documentation, with the default weights.
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        # In tokens instead of blocks, and without what is the same for every replica.
        return least(fleet.prefill_tokens - cached + fleet.prompts, fleet)
