"""Compares routing policies in the simulator over a range of loads, and times one decision."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any

import numpy as np

from forebay.engine.load import ReplicaCounters
from forebay.engine.replica import HttpReplica
from forebay.errors import LaunchError, SettingError
from forebay.fleet.config import DEFAULT_POLICY, FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.engine import FleetEngine
from forebay.fleet.policies import POLICIES, make_policy
from forebay.fleet.replica_table import ReplicaLimits, ReplicaTable
from forebay.fleet.routing_request import RoutingRequest
from forebay.planning.simulate import NAMES, Figures, Scenario
from forebay.records import Completion, Request, Sampling

SWEEP = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.3)
TWO_LOADS = (0.7, 0.9)
MIN_GAIN = 0.9
"""The default's mean TTFT must be at most this times the best other policy's, at `TWO_LOADS`."""
SIZES = (8, 100, 1000)
PROMPT_TOKENS = 4000
DECISIONS = 2000

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RoutingReport:
    """Every policy at every load, and the time of one decision by number of replicas."""

    scenario: Scenario
    capacity_per_s: float
    loads: tuple[float, ...]
    policies: dict[str, list[Figures]]
    decision_us: dict[int, float] = field(default_factory=dict)

    @property
    def others(self) -> list[str]:
        return [name for name in self.policies if not name.startswith(DEFAULT_POLICY)]

    def comparison(self) -> list[dict[str, Any]]:
        """The default against the best other policy, per load; empty without either."""
        if DEFAULT_POLICY not in self.policies or not self.others:
            return []
        found = []
        for at, load in enumerate(self.loads):
            mine = self.policies[DEFAULT_POLICY][at]
            goodput = max(self.policies[name][at].goodput for name in self.others)
            ttft_s = min(self.policies[name][at].ttft_mean_s for name in self.others)
            found.append(
                {
                    "load": load,
                    "goodput": mine.goodput,
                    "best_other_goodput": goodput,
                    "ttft_mean_s": mine.ttft_mean_s,
                    "best_other_ttft_mean_s": ttft_s,
                    "ttft_ratio": mine.ttft_mean_s / ttft_s if ttft_s else 1.0,
                }
            )
        return found

    @property
    def passed(self) -> bool:
        """Whether the default has at least the others' goodput at every load, and the gain in TTFT."""
        return all(
            entry["goodput"] >= entry["best_other_goodput"]
            and (entry["load"] not in TWO_LOADS or entry["ttft_ratio"] <= MIN_GAIN)
            for entry in self.comparison()
        )

    def document(self) -> dict[str, Any]:
        scenario = self.scenario
        return {
            "engine": scenario.model.name,
            "replicas": scenario.replicas,
            "requests": len(scenario.trace),
            "seed": scenario.seed,
            "slo": asdict(scenario.slo),
            "capacity_per_s": self.capacity_per_s,
            "loads": list(self.loads),
            "policies": {
                name: [
                    {"load": load, **_without_quantiles(one)}
                    for load, one in zip(self.loads, found, strict=True)
                ]
                for name, found in self.policies.items()
            },
            "comparison": self.comparison(),
            "passed": self.passed,
            "decision_us": {str(count): cost for count, cost in self.decision_us.items()},
        }


def measure_routing(
    scenario: Scenario, loads: Sequence[float], policies: Sequence[str], note: Note = lambda _: None
) -> RoutingReport:
    for name in policies:
        if name not in NAMES:
            raise SettingError(f"--policy: expected one of {', '.join(NAMES)}; found {name!r}")
    if not loads or min(loads) <= 0:
        raise SettingError(f"--load: expected shares of capacity above 0, found {list(loads)}")
    note("capacity")
    capacity_per_s = scenario.capacity_per_s()
    found: dict[str, list[Figures]] = {}
    for name in policies:
        found[name] = []
        for load in loads:
            note(f"{name} at {load:g} of capacity")
            found[name].append(scenario.run(name, scenario.time_scale(load, capacity_per_s)))
    note("the cost of a decision")
    costs = {count: decision_us(count) for count in SIZES}
    return RoutingReport(scenario, capacity_per_s, tuple(loads), found, costs)


def decision_us(replicas: int, *, block_tokens: int = 512, decisions: int = DECISIONS) -> float:
    """Median microseconds of one decision by the default policy."""
    fleet = ReplicaTable(
        [ReplicaLimits(str(number), 500_000) for number in range(replicas)], block_tokens=block_tokens
    )
    policy = make_policy(DEFAULT_POLICY)
    whole = PROMPT_TOKENS // block_tokens
    took = []
    for at in range(decisions):
        shared = at % 50
        blocks = tuple((shared if i < whole // 2 else 1000 + at) << 20 | i for i in range(whole))
        demand = RoutingRequest(PROMPT_TOKENS, blocks)
        began_s = time.perf_counter()
        cached = fleet.cached(demand)
        replica = policy.choose(demand, cached, fleet, float(at))
        ticket = fleet.take(replica, demand, cached, float(at))
        took.append(time.perf_counter() - began_s)
        fleet.first_token(ticket, at + 0.5)
        fleet.finish(ticket, at + 1.0, output_tokens=10)
    return median(took) * 1e6


def default_policies() -> tuple[str, ...]:
    return tuple(POLICIES.own)


def _without_quantiles(one: Figures) -> dict[str, Any]:
    values = asdict(one)
    del values["ttft_s"], values["latency_s"]
    return values


VOCABULARY = (
    "river basin turbine pressure valve intake spillway gate sediment channel level flow sensor report shift "
    "operator storm season reservoir downstream upstream bridge contract inspection licence market demand"
)
TIMEOUT_S = 300.0
MIN_PREFIX = 1000
LARGEST_TTFT, MIN_THROUGHPUT = 0.5, 1.3


@dataclass(frozen=True, slots=True)
class EnginesOptions:
    """`groups` × `per_group` requests per policy and round, `concurrency` at a time, shuffled by `seed`.

    `prefix_words`: length of the prefix that a group shares.
    """

    groups: int = 8
    per_group: int = 12
    prefix_words: int = 1500
    answer_tokens: int = 16
    concurrency: int = 6
    rounds: int = 2
    policies: tuple[str, ...] = ("round_robin", DEFAULT_POLICY)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    requests: int
    prompt_tokens_mean: float
    ttft_p50_s: float
    ttft_mean_s: float
    ttft_p99_s: float
    requests_per_s: float
    tokens_per_s: float
    hit_share: float | None
    by_replica: tuple[int, ...]


@dataclass
class _Seen:
    ttft_s: list[float] = field(default_factory=list)
    done: list[Completion] = field(default_factory=list)
    elapsed_s: float = 0.0
    queried: float = 0.0
    hit: float = 0.0
    by_replica: Counter[str] = field(default_factory=Counter)


async def measure_engines(
    urls: Sequence[str], options: EnginesOptions, note: Note = lambda _: None
) -> dict[str, Any]:
    """Figures of every policy, and the default compared with the others."""
    seen = {policy: _Seen() for policy in options.policies}
    for number in range(options.rounds):
        turn = options.policies if number % 2 == 0 else options.policies[::-1]
        for policy in turn:
            note(f"round {number + 1} of {options.rounds}: {policy}")
            await _run(urls, policy, f"{policy} {number} {options.seed}", options, seen[policy])
    figures = {policy: _figures(seen[policy], urls) for policy in options.policies}
    return {
        "engines": len(urls),
        "options": asdict(options),
        "policies": {policy: asdict(found) for policy, found in figures.items()},
        "comparison": _comparison(figures),
    }


def passed(report: dict[str, Any]) -> bool:
    """Whether the default's TTFT and throughput meet their targets against round robin."""
    round_robin = report["comparison"].get("round_robin")
    return round_robin is None or (
        round_robin["ttft_p50_ratio"] <= LARGEST_TTFT and round_robin["throughput_ratio"] >= MIN_THROUGHPUT
    )


def requests_of(name: str, model: str, options: EnginesOptions) -> list[Request]:
    """Requests of one run, in order; prefixes are different for every `name`."""
    order = [group for group in range(options.groups) for _ in range(options.per_group)]
    random.Random(options.seed).shuffle(order)
    sampling = Sampling(max_tokens=options.answer_tokens, extra={"ignore_eos": True})
    prefixes = [" ".join(_words(f"{name} {group}", options.prefix_words)) for group in range(options.groups)]
    return [
        Request(
            id=f"{name} {at}",
            model=model,
            prompt=f"{prefixes[group]}. Question {at}: {' '.join(_words(f'{name} q {at}', 12))}?",
            sampling=sampling,
        )
        for at, group in enumerate(order)
    ]


def _words(seed: str, count: int) -> Iterator[str]:
    dice, words = random.Random(seed), VOCABULARY.split()
    return (dice.choice(words) for _ in range(count))


async def _run(urls: Sequence[str], policy: str, name: str, options: EnginesOptions, seen: _Seen) -> None:
    engine = FleetEngine(FleetConfig(FixedReplicas(tuple(urls)), routing=policy))
    try:
        await engine.client.start()
        waiting = iter(requests_of(name, engine.client.models[0].name, options))
        before = await _counters(urls)
        began_s = time.monotonic()

        async def worker() -> None:
            for request in waiting:
                due_s = time.monotonic()
                done = await engine.complete(request, timeout_s=TIMEOUT_S)
                if done.timing.first_token_s is None or done.usage.prompt_tokens < MIN_PREFIX:
                    raise LaunchError(
                        f"request {request.id} had {done.usage.prompt_tokens} tokens of prompt and "
                        f"{done.usage.completion_tokens} of answer; expected {MIN_PREFIX} or more, and some"
                    )
                seen.ttft_s.append(done.timing.first_token_s - due_s)
                seen.done.append(done)

        await asyncio.gather(*(worker() for _ in range(options.concurrency)))
        seen.elapsed_s += time.monotonic() - began_s
        for url, old, new in zip(urls, before, await _counters(urls), strict=True):
            seen.queried += (new.prefix_cache_queries or 0) - (old.prefix_cache_queries or 0)
            seen.hit += (new.prefix_cache_hits or 0) - (old.prefix_cache_hits or 0)
            answered = (new.generation_tokens or 0) - (old.generation_tokens or 0)
            seen.by_replica[url] += round(answered / options.answer_tokens)
    finally:
        await engine.close()


async def _counters(urls: Sequence[str]) -> list[ReplicaCounters]:
    replicas = [HttpReplica(url) for url in urls]
    try:
        return [(await replica.fetch_metrics())[1] for replica in replicas]
    finally:
        for replica in replicas:
            await replica.close()


def _figures(seen: _Seen, urls: Sequence[str]) -> PolicyFigures:
    return PolicyFigures(
        requests=len(seen.done),
        prompt_tokens_mean=round(mean(one.usage.prompt_tokens for one in seen.done), 1),
        ttft_p50_s=round(median(seen.ttft_s), 4),
        ttft_mean_s=round(mean(seen.ttft_s), 4),
        ttft_p99_s=round(float(np.quantile(seen.ttft_s, 0.99)), 4),
        requests_per_s=round(len(seen.done) / seen.elapsed_s, 3),
        tokens_per_s=round(sum(one.usage.completion_tokens for one in seen.done) / seen.elapsed_s, 2),
        hit_share=round(seen.hit / seen.queried, 4) if seen.queried else None,
        by_replica=tuple(seen.by_replica[url] for url in urls),
    )


def _comparison(figures: dict[str, PolicyFigures]) -> dict[str, Any]:
    mine = figures.get(DEFAULT_POLICY)
    if mine is None:
        return {}
    return {
        policy: {
            "ttft_p50_ratio": round(mine.ttft_p50_s / other.ttft_p50_s, 4),
            "throughput_ratio": round(mine.requests_per_s / other.requests_per_s, 4),
        }
        for policy, other in figures.items()
        if policy != DEFAULT_POLICY
    }
