"""The published rule of SGLang's router, cache_aware, as a peer to measure against."""

from __future__ import annotations

from forebay.fleet.base import Demand, Vector
from forebay.fleet.policies.choice import least
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

    def choose(self, demand: Demand, cached: Vector, fleet: Fleet, now_s: float) -> int:
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
