"""Compares routing policies on real engines, with groups of requests that share a long prefix."""

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
from forebay.errors import LaunchError
from forebay.fleet.config import FleetConfig
from forebay.fleet.discovery import FixedReplicas
from forebay.fleet.engine import FleetEngine
from forebay.fleet.policies import DEFAULT_POLICY
from forebay.records import Completion, Request, Sampling

Note = Callable[[str], None]

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
    """One policy over all rounds."""

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
    """Figures of every policy, and the default compared with the others.

    Policies take turns, in rotated order from round to round, each time with new prefixes. Raises
    `LaunchError` if a request fails or the engines count fewer than 1,000 prompt tokens, and what opening a
    fleet raises.
    """
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
    beside = report["comparison"].get("round_robin")
    return beside is None or (
        beside["ttft_p50_ratio"] <= LARGEST_TTFT and beside["throughput_ratio"] >= MIN_THROUGHPUT
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
