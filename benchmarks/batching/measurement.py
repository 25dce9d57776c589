"""Static against continuous batching: the two tables of the study that made continuous batching
known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from random import Random

from benchmarks.batching.transformers import (
    ATTENTIONS,
    BatchCost,
    StaticBatchTarget,
    TransformersWorker,
    batch_cost,
    check_batch_size,
    fastest,
)
from forebay.bench.client import measure
from forebay.bench.load.schedules import Bursts, Poisson, RequestLoad, fresh_nonce, make_load
from forebay.bench.load.workloads import CappedExponential, Exactly, RandomTokens, Uniform, random_ids
from forebay.bench.metrics import RunFigures
from forebay.bench.records import LoadRun
from forebay.bench.report.document import MeasuredRun, measured_run
from forebay.bench.resources import disturbed, processor_use
from forebay.bench.targets.base import Target
from forebay.engine.launch.spec import usable_cores
from forebay.errors import SettingError

LIMITS = (32, 128, 512, 1536)
PROMPT_TOKENS = 512
MEAN_TOKENS = 128.0
REQUESTS = 1000
STUDY_RATES_PER_S = (1.0, 4.0)
STUDY_SATURATION_PER_S = 8.0
"""The rate at which vLLM was saturated in the study, by its own words."""
STATIC, CONTINUOUS = SYSTEMS = "static", "continuous"
TIMEOUT_S = 4 * 3600.0
WARM_UP_TOKENS = 8
TRIES = 3
"""How often a load is measured at most, if other programs disturb it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingOptions:
    """Sizes of the measurement; the study's by default.

    `requests`: of each throughput cell; `latency_requests`: of each latency cell, 0: none. `relative_rates`:
    scale the study's rates to the engine: its 1 and 4 requests per second are an eighth and a half of what
    saturated it. `batch_sizes`, `attentions`: what is tried for static batching. `even_lengths`:
    answers' lengths are quantiles of their distribution in random order instead of random draws: of a few
    dozen draws hardly one exceeds 512 tokens, and two limits would have the same answers.
    """

    limits: tuple[int, ...] = LIMITS
    requests: int = REQUESTS
    latency_requests: int = REQUESTS
    prompt_tokens: int = PROMPT_TOKENS
    mean_tokens: float = MEAN_TOKENS
    rates_per_s: tuple[float, ...] = STUDY_RATES_PER_S
    relative_rates: bool = False
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    attentions: tuple[str, ...] = ATTENTIONS
    even_lengths: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.limits or not self.batch_sizes or not self.attentions:
            raise SettingError("batching: expected at least one limit, one batch size and one attention")
        if self.requests < 1 or self.latency_requests < 0 or self.prompt_tokens < 4:
            raise SettingError("batching: expected requests, and prompts of at least 4 tokens")
        for limit in self.limits:
            CappedExponential(self.mean_tokens, limit)
        for size in self.batch_sizes:
            check_batch_size(size)
        if unknown := set(self.attentions) - set(ATTENTIONS):
            raise SettingError(
                f"attention: expected {' or '.join(ATTENTIONS)}, found {', '.join(sorted(unknown))[:80]}"
            )


PROCESSOR = BatchingOptions(
    requests=64, latency_requests=48, relative_rates=True, even_lengths=True, batch_sizes=(1, 2, 4, 8, 16, 32)
)
"""For a model on a few processor cores: half an hour."""
QUICK = replace(PROCESSOR, requests=20, latency_requests=12, batch_sizes=(4, 8, 16))
"""Some minutes; differences of a fifth mean nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """A load and its place in the tables: `limit` for throughput; the study's `rate` for latency, and the
    rate sent for it."""

    load: RequestLoad
    limit: int | None = None
    rate: float | None = None
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One load on one system.

    `limit` of a throughput cell, `rate` (the study's) of a latency cell, for which `rate_per_s` was sent.
    `batch_size`, `attention`: of static batching. `others_cores`: cores that other programs kept busy; None:
    unknown, because the system runs elsewhere.
    """

    system: str
    measured: MeasuredRun
    limit: int | None = None
    rate: float | None = None
    rate_per_s: float | None = None
    batch_size: int | None = None
    attention: str | None = None
    others_cores: float | None = None

    @property
    def run(self) -> LoadRun:
        return self.measured.run

    @property
    def figures(self) -> RunFigures:
        return self.measured.figures

    @property
    def reasons(self) -> tuple[str, ...]:
        return doubts(self.measured, self.others_cores)


def doubts(measured: MeasuredRun, others_cores: float | None) -> tuple[str, ...]:
    """Reasons not to trust a run, if other programs kept `others_cores` busy meanwhile."""
    found = () if measured.verdict is None else measured.verdict.reasons
    crowd = None if others_cores is None else disturbed(others_cores, len(usable_cores()))
    return found if crowd is None else (*found, crowd)


@dataclass(frozen=True, slots=True)
class Batching:
    """`costs`: from which static batching's settings were chosen."""

    options: BatchingOptions
    cells: tuple[Cell, ...]
    costs: tuple[BatchCost, ...] = ()
    complete: bool = True

    def cell(self, system: str, *, limit: int | None = None, rate: float | None = None) -> Cell | None:
        found = (one for one in self.cells if one.system == system)
        return next((one for one in found if (one.limit, one.rate) == (limit, rate)), None)


StartWorker = Callable[[str], AbstractContextManager[TransformersWorker]]
Note = Callable[[str], None]


def quantile_lengths(count: int, mean: float, limit: int, seed: int) -> list[int]:
    whole = -math.expm1(-limit / mean)
    lengths = [
        min(limit, max(1, math.ceil(-mean * math.log1p(-whole * (index + 0.5) / count))))
        for index in range(count)
    ]
    Random(f"order {seed}").shuffle(lengths)
    return lengths


def fresh_prompts(load: RequestLoad) -> RequestLoad:
    """The same load with other tokens in its prompts, which no cache holds."""
    nonce = fresh_nonce()
    requests = [
        replace(one, prompt=random_ids(len(one.prompt), nonce, 0, one.index)) for one in load.requests
    ]
    return RequestLoad(requests, load.concurrency, {**load.asked, "nonce": nonce})


@dataclass(slots=True)
class Measurement:
    """Measures one system after the other, so that they do not compete for the machine.

    `complete`: False after an interrupted load; nothing more is measured then. `local`: whether both run
    below this process, so that other programs' processor use is known.
    """

    options: BatchingOptions
    note: Note = print
    local: bool = True
    complete: bool = True
    _capacity_per_s: float | None = None

    def continuous(self, target: Target) -> Iterator[Cell]:
        """The cells of continuous batching; measure them first, since static batching gets the same rates."""
        if not measure(target, self._warm_up()).complete:
            self.complete = False
            return
        for place in self._places():
            yield from self._cell(CONTINUOUS, target, place)

    def static(self, start: StartWorker, costs: list[BatchCost]) -> Iterator[Cell]:
        options = self.options
        with ExitStack() as running:
            workers = {name: running.enter_context(start(name)) for name in options.attentions}
            for name, worker in workers.items():
                worker.answer([[1] * WARM_UP_TOKENS], WARM_UP_TOKENS)
                for size in options.batch_sizes:
                    found = batch_cost(worker, size, options.prompt_tokens)
                    if found is None:
                        self.note(f"static batching, {name}: a batch of {size} failed")
                        continue
                    costs.append(found)
                    self.note(
                        f"static batching, {name}: {size} prompts {found.prefill_s:.2f} s, "
                        f"a token of each {found.step_s * 1000:.0f} ms"
                    )
            for place in self._places():
                yield from self._static_cell(workers, costs, place)

    def _places(self) -> Iterator[Place]:
        for limit in self.options.limits:
            yield Place(self._burst(limit), limit=limit)
        for rate, rate_per_s in self.rates():
            yield Place(self._arrivals(rate_per_s), rate=rate, rate_per_s=rate_per_s)

    def rates(self) -> list[tuple[float, float]]:
        options = self.options
        if not options.latency_requests:
            return []
        if not options.relative_rates:
            return [(rate, rate) for rate in options.rates_per_s]
        if self._capacity_per_s is None:
            self.note("no latency: its rates are relative to the throughput of continuous batching")
            return []
        scale = self._capacity_per_s / STUDY_SATURATION_PER_S
        return [(rate, round(rate * scale, 4)) for rate in options.rates_per_s]

    def _static_cell(
        self, workers: dict[str, TransformersWorker], costs: Sequence[BatchCost], place: Place
    ) -> Iterator[Cell]:
        cost = fastest(costs, [request.output_tokens for request in place.load.requests])
        target = StaticBatchTarget(workers[cost.attention], cost.batch_size)
        yield from self._cell(STATIC, target, place, cost)

    def _cell(
        self, system: str, target: Target, place: Place, cost: BatchCost | None = None
    ) -> Iterator[Cell]:
        if not self.complete:
            return
        run, others = self._undisturbed(target, place.load)
        measured = measured_run(run)
        if system == CONTINUOUS and place.limit == max(self.options.limits):
            self._capacity_per_s = measured.figures.requests_per_s
        size, attention = (None, None) if cost is None else (cost.batch_size, cost.attention)
        yield Cell(system, measured, place.limit, place.rate, place.rate_per_s, size, attention, others)

    def _undisturbed(self, target: Target, load: RequestLoad) -> tuple[LoadRun, float | None]:
        tries: list[tuple[LoadRun, float]] = []
        while len(tries) < TRIES:
            before = processor_use()
            run = measure(target, load, timeout_s=TIMEOUT_S)
            self.complete = run.complete
            if not self.local:
                return run, None
            tries.append((run, before.others_cores(processor_use())))
            reason = disturbed(tries[-1][1], len(usable_cores()))
            if reason is None or not run.complete:
                break
            self.note(f"{target.name}: {reason}")
            load = fresh_prompts(load)
        return min(tries, key=lambda one: (not one[0].complete, one[1]))

    def _burst(self, limit: int) -> RequestLoad:
        options = self.options
        workload = RandomTokens(Exactly(options.prompt_tokens), CappedExponential(options.mean_tokens, limit))
        load = make_load(Bursts(), workload, options.requests, seed=options.seed)
        return self._even(load, limit) if options.even_lengths else load

    def _arrivals(self, rate_per_s: float) -> RequestLoad:
        options = self.options
        quarter, limit = options.prompt_tokens // 4, max(options.limits)
        lengths = CappedExponential(options.mean_tokens, limit)
        workload = RandomTokens(Uniform(quarter, 3 * quarter), lengths)
        load = make_load(Poisson(rate_per_s), workload, options.latency_requests, seed=options.seed)
        return self._even(load, limit) if options.even_lengths else load

    def _even(self, load: RequestLoad, limit: int) -> RequestLoad:
        options = self.options
        lengths = quantile_lengths(len(load.requests), options.mean_tokens, limit, options.seed)
        requests = [replace(one, output_tokens=n) for one, n in zip(load.requests, lengths, strict=True)]
        return RequestLoad(requests, load.concurrency, {**load.asked, "lengths": "quantiles in random order"})

    def _warm_up(self) -> RequestLoad:
        workload = RandomTokens(Exactly(self.options.prompt_tokens), Exactly(WARM_UP_TOKENS))
        return make_load(Bursts(), workload, 2, seed=self.options.seed)
