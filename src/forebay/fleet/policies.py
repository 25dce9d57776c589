"""The best of the available replicas, by one number each."""

from __future__ import annotations

from hashlib import blake2b
from random import Random

import numpy as np

from forebay.fleet.estimate import prefill_s, queue_s, stall_s
from forebay.fleet.routing_request import RoutingRequest, Vector
from forebay.fleet.state import Fleet


def least(costs: Vector, fleet: Fleet) -> int:
    """The available replica with the least cost; of equals the one with the lowest number."""
    if fleet.all_available:
        return int(costs.argmin())
    return int(np.where(fleet.available, costs, np.inf).argmin())


class LeastRequests:
    """The replica with the fewest requests in flight."""

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        return least(fleet.requests + fleet.external, fleet)


class PowerOfTwo:
    """Of two available replicas drawn at random, the one with fewer requests in flight.

    Mitzenmacher, The power of two choices in randomized load balancing, 1996.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        numbers = fleet.available.nonzero()[0]
        if len(numbers) == 1:
            return int(numbers[0])
        one = int(self._random.random() * len(numbers))
        other = int(self._random.random() * (len(numbers) - 1))
        other += other >= one
        first, second = int(numbers[one]), int(numbers[other])
        requests = fleet.requests
        return first if requests[first] <= requests[second] else second


class RandomChoice:
    """An available replica, each as likely as the others."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        if fleet.all_available:
            return int(self._random.random() * fleet.count)
        numbers = fleet.available.nonzero()[0]
        return int(numbers[int(self._random.random() * len(numbers))])


class RoundRobin:
    """The available replica that follows the last one chosen."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        available = fleet.available
        for _ in range(fleet.count):
            self._last = (self._last + 1) % fleet.count
            if available[self._last]:
                break
        return self._last


class SessionAffinity:
    """The replica that a session's hash falls to, by highest random weight (Thaler and Ravishankar, 1998).

    When a replica comes or goes, only the sessions move that it takes or had: 1/n of them. A request without
    a session is kept by its prompt's first block; one without any goes to whoever has fewest requests.
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        if demand.session is not None:
            key = demand.session.encode("utf-8", "surrogatepass")
        elif demand.blocks:
            key = demand.blocks[0].to_bytes(8, "little")
        else:
            requests = fleet.requests.tolist()
            return min(fleet.numbers(), key=requests.__getitem__)
        best, weight = -1, b""
        for number in fleet.numbers():
            name = fleet.names[number].encode()
            if len(name) > blake2b.MAX_KEY_SIZE:
                name = blake2b(name).digest()
            mine = blake2b(key, digest_size=8, key=name).digest()
            if mine > weight or best < 0:
                best, weight = number, mine
        return best


class ExpectedTtft:
    """The replica with the least sum of the time to this request's first token and its cost to the others.

    There is no threshold for imbalance: a hot prefix spills by itself once the cached replica's queue costs
    more than a prefill elsewhere.
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: Fleet, now_s: float) -> int:
        work_s = prefill_s(fleet, demand, cached)
        costs = stall_s(fleet, work_s)
        costs += work_s
        costs += queue_s(fleet, now_s)
        return least(costs, fleet)
