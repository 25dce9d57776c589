"""The factors of `python -m benchmarks grid`, and the resulting cells."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from random import Random
from statistics import NormalDist, fmean

from forebay.bench.load.schedules import (
    Bursts,
    ClosedLoop,
    Constant,
    Gamma,
    Poisson,
    RequestLoad,
    Schedule,
    TraceReplay,
    check_rate,
    check_requests,
    make_load,
)
from forebay.bench.load.workloads import Exactly, RandomTokens, check_tokens
from forebay.errors import SettingError

EXACT, EXPONENTIAL, HEAVY = "exact", "exponential", "heavy"
TAILS = (EXACT, EXPONENTIAL, HEAVY)
SIGMA = 1.5
"""Sigma of the heavy, log-normal tail: before the cut its mean is 3.1 times its median."""
NORMAL = NormalDist()
HALVINGS = 60


def _exponential(u: float, scale: float, limit: int) -> float:
    return -scale * math.log1p(u * math.expm1(-limit / scale))


def _heavy(u: float, scale: float, limit: int) -> float:
    whole = NORMAL.cdf(math.log(limit / scale) / SIGMA)
    return scale * math.exp(SIGMA * NORMAL.inv_cdf(u * whole))


QUANTILES: Mapping[str, Callable[[float, float, int], float]] = {EXPONENTIAL: _exponential, HEAVY: _heavy}


def tail_lengths(tail: str, count: int, mean: float, limit: int, seed: int = 0) -> list[int]:
    check_tokens("length limit", limit)
    if tail not in TAILS:
        raise SettingError(f"tail: expected {', '.join(TAILS)}, found {tail[:80]!r}")
    if not 1 <= mean <= limit / 3:
        raise SettingError(f"mean length: expected 1 to a third of the limit, {limit} tokens, found {mean:g}")
    if tail == EXACT:
        return [round(mean)] * count
    found = list(_quantiles(tail, count, mean, limit))
    Random(f"order {tail} {seed}").shuffle(found)
    return found


@lru_cache(maxsize=16)
def _quantiles(tail: str, count: int, mean: float, limit: int) -> tuple[int, ...]:
    def lengths(scale: float) -> list[int]:
        return [
            min(limit, max(1, round(QUANTILES[tail]((at + 0.5) / count, scale, limit))))
            for at in range(count)
        ]

    low, high = mean / 1000, mean * 1000
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fmean(lengths(middle)) < mean else (low, middle)
    return tuple(lengths(high))


CONSTANT, POISSON, BURSTS, TRACE = "constant", "poisson", "bursts", "trace"
ARRIVALS = (CONSTANT, POISSON, BURSTS, TRACE)
BURSTINESS = 0.25
"""Shape of the gamma distribution of gaps for the arrival `bursts`: twice as uneven as Poisson's."""
PARALLELISM = re.compile(r"([0-9]{1,3})(?:x([0-9]{1,4}))?")
MAX_REPLICAS = 64


@dataclass(frozen=True, slots=True)
class Parallelism:
    """`replicas`, each on `cores_each` cores of its own; None: they share all cores."""

    replicas: int = 1
    cores_each: int | None = None

    @property
    def name(self) -> str:
        return f"{self.replicas}" if self.cores_each is None else f"{self.replicas}x{self.cores_each}"

    def on(self, cores: Sequence[int]) -> Parallelism:
        each = self.cores_each or len(cores) // self.replicas
        if not 1 <= each * self.replicas <= len(cores):
            raise SettingError(
                f"--replicas {self.name}: there are {len(cores)} cores, and each replica needs "
                f"{self.cores_each or 'one of its own'}"
            )
        return Parallelism(self.replicas, each)


def read_parallelism(text: str) -> Parallelism:
    """`2`: two replicas that share all cores; `2x1`: two with one core each."""
    found = PARALLELISM.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= MAX_REPLICAS or found[2] == "0":
        raise SettingError(
            f"--replicas: expected REPLICAS or REPLICASxCORES, such as 2 or 2x4, found {text[:80]!r}"
        )
    return Parallelism(int(found[1]), int(found[2]) if found[2] else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridOptions:
    """The factors, and the sizes of each cell. `load`: the arrival rate as a share of the engine's
    own throughput, unless `rate_per_s` is given. `trace_s`: the arrivals of the trace, stretched to
    that rate. `serving`, `stream`: measure the engine alone, and a pipeline in front of it."""

    models: tuple[str, ...]
    parallelisms: tuple[Parallelism, ...] = (Parallelism(),)
    subtasks: tuple[int, ...] = (1,)
    arrivals: tuple[str, ...] = (POISSON, BURSTS)
    tails: tuple[str, ...] = (EXACT, HEAVY)
    requests: int = 100
    prompt_tokens: int = 128
    mean_tokens: float = 32.0
    limit_tokens: int = 256
    load: float = 0.6
    rate_per_s: float | None = None
    trace_s: tuple[float, ...] = ()
    repeats: int = 1
    serving: bool = True
    stream: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not all((self.models, self.parallelisms, self.subtasks, self.arrivals, self.tails)):
            raise SettingError("grid: expected at least one value of each factor")
        if unknown := sorted(set(self.arrivals) - set(ARRIVALS)):
            raise SettingError(f"--arrival: expected {', '.join(ARRIVALS)}, found {unknown[0][:80]!r}")
        if unknown := sorted(set(self.tails) - set(TAILS)):
            raise SettingError(f"--tail: expected {', '.join(TAILS)}, found {unknown[0][:80]!r}")
        if (TRACE in self.arrivals) != bool(self.trace_s):
            raise SettingError("--arrival trace and --trace FILE: expected both or none")
        if not self.serving and not self.stream:
            raise SettingError("grid: expected to measure the engine, the stream, or both")
        if not 0 < self.load <= 10:
            raise SettingError(f"--load: expected more than 0 and at most 10, found {self.load:g}")
        if self.rate_per_s is not None:
            check_rate("--rate", self.rate_per_s)
        if not 1 <= self.repeats <= 1000 or min(self.subtasks) < 1:
            raise SettingError("grid: expected at least one repeat, and one subtask")
        check_requests(self.requests)
        Exactly(self.prompt_tokens)
        for tail in self.tails:
            tail_lengths(tail, self.requests, self.mean_tokens, self.limit_tokens)
        if self.trace_s and len(self.trace_s) < self.requests:
            raise SettingError(
                f"--trace: holds {len(self.trace_s)} requests, and {self.requests} are asked for"
            )

    def engines(self) -> Iterator[tuple[str, Parallelism]]:
        return product(self.models, self.parallelisms)

    def cells(self, model: str, parallelism: Parallelism) -> list[CellSpec]:
        varied = product(self.subtasks, self.arrivals, self.tails, range(self.repeats))
        return [CellSpec(model, parallelism, *each) for each in varied]


@dataclass(frozen=True, slots=True)
class CellSpec:
    model: str
    parallelism: Parallelism
    subtasks: int
    arrival: str
    tail: str
    repeat: int = 0

    @property
    def name(self) -> str:
        tasks = f", {self.subtasks} subtasks" if self.subtasks > 1 else ""
        again = f", repeat {self.repeat + 1}" if self.repeat else ""
        where = f"{self.model}, {self.parallelism.name} replica(s){tasks}"
        return f"{where}, {self.arrival}, {self.tail} lengths{again}"


def schedule_of(arrival: str, rate_per_s: float, trace_s: Sequence[float] = ()) -> Schedule:
    if arrival == CONSTANT:
        return Constant(rate_per_s)
    if arrival == POISSON:
        return Poisson(rate_per_s)
    if arrival == BURSTS:
        return Gamma(rate_per_s, BURSTINESS)
    own_per_s = len(trace_s) / max(trace_s[-1], 1e-6)
    return TraceReplay(trace_s, rate_per_s / own_per_s, "trace")


def cell_load(options: GridOptions, spec: CellSpec, rate_per_s: float) -> RequestLoad:
    """The requests of a cell; repeats have other times and another order of the same lengths."""
    seed = options.seed + spec.repeat
    schedule = schedule_of(spec.arrival, rate_per_s, options.trace_s[: options.requests])
    return _load(options, schedule, spec.tail, seed)


def burst_load(options: GridOptions, tail: str) -> RequestLoad:
    return _load(options, Bursts(), tail, options.seed)


def warm_up_load(options: GridOptions) -> RequestLoad:
    workload = RandomTokens(Exactly(options.prompt_tokens), Exactly(8))
    return make_load(ClosedLoop(2), workload, 4, seed=options.seed)


def _load(options: GridOptions, schedule: Schedule, tail: str, seed: int) -> RequestLoad:
    lengths = tail_lengths(tail, options.requests, options.mean_tokens, options.limit_tokens, seed)
    workload = RandomTokens(Exactly(options.prompt_tokens), Exactly(max(1, round(options.mean_tokens))))
    load = make_load(schedule, workload, options.requests, seed=seed)
    requests = [replace(one, output_tokens=n) for one, n in zip(load.requests, lengths, strict=True)]
    return RequestLoad(requests, load.concurrency, {**load.asked, "tail": tail})
