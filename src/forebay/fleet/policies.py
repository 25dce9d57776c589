"""Routing policies by name: simple ones, and the published rules of other routers to compare with."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from hashlib import blake2b
from random import Random

import numpy as np

from forebay.documents import suggestion
from forebay.errors import ForebayError, SettingError
from forebay.fleet.admission import Policy
from forebay.fleet.estimate import ExpectedTtft, least
from forebay.fleet.replica_table import ReplicaTable
from forebay.fleet.routing_request import RoutingRequest, Vector
from forebay.registry import Registry, described


class LeastRequests:
    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
        return least(fleet.requests + fleet.external, fleet)


class PowerOfTwo:
    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
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
    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
        if fleet.all_available:
            return int(self._random.random() * fleet.count)
        numbers = fleet.available.nonzero()[0]
        return int(numbers[int(self._random.random() * len(numbers))])


class RoundRobin:
    def __init__(self) -> None:
        self._last = -1

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
        available = fleet.available
        for _ in range(fleet.count):
            self._last = (self._last + 1) % fleet.count
            if available[self._last]:
                break
        return self._last


class SessionAffinity:
    """The replica that a session's hash maps to, by highest random weight (Thaler and Ravishankar, 1998).

    If a replica joins or leaves, only 1/n of the sessions move. Without a session, the prompt's first block
    decides, and without a block the number of requests.
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
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


CACHE_THRESHOLD = 0.5
BALANCE_ABS = 32
BALANCE_REL = 1.1


class Sglang:
    """The shortest queue if the load is uneven, else the longest match if it is more than half of the prompt,
    else the smallest prefix tree.

    Uneven: the most loaded replica has more than 32 requests above the least loaded one, and more than 1.1
    times its number. Source: documentation of sgl-router.
    """

    def __init__(self) -> None:
        self._tree: list[float] = []

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
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
    """The fewest requests if the load is uneven, else the longest match that is not overloaded.

    Uneven: the numbers differ by more than 8. Overloaded: more requests than the mean and one standard
    deviation. Source: the README of its gateway's routing algorithms.
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
        requests = fleet.requests
        loads = requests if fleet.all_available else requests[fleet.available]
        fewest = least(requests, fleet)
        if float(loads.max()) - float(loads.min()) > IMBALANCE:
            return fewest
        limit = float(loads.mean()) + DEVIATIONS * float(loads.std())
        fits = (cached > 0) & (requests <= limit) & fleet.available
        if not fits.any():
            return fewest
        # The longest match, then the fewest requests: a request weighs less than a block.
        return int(np.where(fits, requests - cached * (1 + float(loads.max())), np.inf).argmin())


QUEUE_WEIGHT = 2.0
KV_WEIGHT = 2.0
PREFIX_WEIGHT = 3.0


class LlmD:
    """The highest sum of three scores from 0 to 1, with random ties.

    Queue (2): 1 for the shortest reported queue to 0 for the longest. KV cache (2): the reported free share.
    Prefix (3): the share of the prompt's blocks that the replica holds. Source: documentation of llm-d's
    scheduler and of the Gateway API inference extension.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
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
    """The fewest prefill blocks plus decode blocks, with full credit for overlap and equal weights.

    Prefill blocks: uncached tokens of this prompt and of those without a first token. Decode blocks: those of
    all requests there and of this one. Source: Routing Concepts in Dynamo's documentation.
    """

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
        # In tokens instead of blocks, and without what is equal for all replicas.
        return least(fleet.prefill_tokens - cached + fleet.prompts, fleet)


log = logging.getLogger(__name__)

MakePolicy = Callable[[int], Policy]

POLICIES: Registry[MakePolicy] = Registry(
    what="routing policy",
    group="forebay.policies",
    own={
        "random": RandomChoice,
        "round_robin": lambda _seed: RoundRobin(),
        "least_requests": lambda _seed: LeastRequests(),
        "power_of_two": PowerOfTwo,
        "session_affinity": lambda _seed: SessionAffinity(),
        "expected_ttft": lambda _seed: ExpectedTtft(),
        "sglang": lambda _seed: Sglang(),
        "aibrix": lambda _seed: Aibrix(),
        "llm_d": LlmD,
        "dynamo": lambda _seed: Dynamo(),
    },
    expected="a class or function that makes a policy of a seed",
    fits=callable,
)


def make_policy(name: str, *, seed: int = 0, instead: Policy | None = None) -> Policy:
    """Return the policy of this name. Raises `SettingError`, also for a package's policy that cannot be
    created.

    If a package's policy raises in `choose` or returns an unavailable replica, `ForebayError` names it; with
    `instead`, that policy chooses then.
    """
    make = POLICIES.find(name)
    if make is None:
        names = POLICIES.names()
        raise SettingError(
            f"policy: expected one of {', '.join(names)}; found {name[:80]!r}{suggestion(name, names)}"
        )
    package = POLICIES.origin(name)
    if package is None:
        return make(seed)
    called = f"the routing policy {name!r} of the package {package}"
    try:
        policy = make(seed)
    except Exception as error:
        raise SettingError(
            f"{called} could not be created with the seed {seed}: {type(error).__name__}: {error}; "
            f"fix or uninstall the package"
        ) from error
    if not callable(getattr(policy, "choose", None)):
        raise SettingError(
            f"{called}: expected a policy with a method choose, found {described(policy)}; fix the package"
        )
    return CheckedPolicy(policy, called, instead)


class CheckedPolicy:
    def __init__(self, policy: Policy, called: str, instead: Policy | None) -> None:
        self._policy = policy
        self._called = called
        self._instead = instead
        self._warned = False

    def choose(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
        try:
            return self._chosen(demand, cached, fleet, now_s)
        except ForebayError as error:
            if self._instead is None:
                raise
            if not self._warned:
                self._warned = True
                log.warning("%s; Forebay chooses in its place", error)
            return self._instead.choose(demand, cached, fleet, now_s)

    def _chosen(self, demand: RoutingRequest, cached: Vector, fleet: ReplicaTable, now_s: float) -> int:
        try:
            chosen = operator.index(self._policy.choose(demand, cached, fleet, now_s))
        except Exception as error:
            raise ForebayError(f"{self._called} failed: {type(error).__name__}: {error}") from error
        if not (0 <= chosen < fleet.count and fleet.available[chosen]):
            raise ForebayError(f"{self._called} chose replica {chosen}, which is not available")
        return chosen
