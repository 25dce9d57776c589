"""Measures the load client: whether it keeps its schedule, and the time that it adds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from forebay.bench.client import measure
from forebay.bench.load.lengths import Exactly
from forebay.bench.load.plan import make_load
from forebay.bench.load.schedules import Poisson
from forebay.bench.load.workloads import RandomTokens
from forebay.bench.metrics import RequestFigures, request_figures
from forebay.bench.statistics import percentile
from forebay.bench.targets.openai import OpenAiTarget
from forebay.bench.verdict import judge
from forebay.errors import SetupError
from forebay.testing.stream_server import StreamServerProcess

MAX_DELAY_S = 0.005
"""Schedule delay at the 99th percentile: the client's promise at 1,000 requests per second."""
PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Streams of `tokens` tokens: the first after `first_s`, then one each `gap_s`."""

    rates: tuple[float, ...] = (250.0, 500.0, 1000.0)
    seconds: float = 10.0
    tokens: int = 20
    first_s: float = 0.05
    gap_s: float = 0.01
    seed: int = 0


def measure_client(options: ClientOptions, note: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """A document with one run per rate; blocks. Raises `SetupError` with fewer than two cores."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SetupError("the client and its server need a core each: this process may use only one")
    runs = []
    server = StreamServerProcess(options.tokens, options.first_s, options.gap_s, cores=cores[1:2])
    with server, on_core(cores[0]):
        for rate in options.rates:
            note(f"{rate:g} requests/s: {options.seconds:.0f} s")
            runs.append(_run(options, rate, server))
    return {**asdict(options), "max_delay_ms": MAX_DELAY_S * 1000, "runs": runs}


def _run(options: ClientOptions, rate: float, server: StreamServerProcess) -> dict[str, Any]:
    workload = RandomTokens(Exactly(PROMPT_TOKENS), Exactly(options.tokens))
    load = make_load(Poisson(rate), workload, round(rate * options.seconds), seed=options.seed)
    client, before = psutil.Process(), _processor_s(psutil.Process(), psutil.Process(server.pid))
    run = measure(OpenAiTarget(server.url), load)
    after = _processor_s(client, psutil.Process(server.pid))
    verdict = judge(run)
    figures = [found for record in run.records if (found := request_figures(record)) is not None]
    whole_s = options.first_s + (options.tokens - 1) * options.gap_s
    reasons = list(verdict.reasons)
    delay_s = verdict.schedule_delay_p99_s
    if delay_s is not None and delay_s > MAX_DELAY_S:
        reasons.append(f"schedule delay p99 {delay_s * 1000:.2f} ms, more than {MAX_DELAY_S * 1000:g} ms")
    return {
        "rate_per_s": rate,
        "requests": len(run.records),
        "answered": len(figures),
        "verdict": "INVALID" if reasons else "VALID",
        "reasons": reasons,
        "schedule_delay_ms": _quantiles(figures, lambda one: one.schedule_delay_s),
        "added_ttft_ms": _quantiles(figures, lambda one: (one.service_ttft_s or 0.0) - options.first_s),
        "added_e2el_ms": _quantiles(figures, lambda one: one.service_e2el_s - whole_s),
        "tpot_ms": _quantiles(figures, lambda one: one.tpot_s or 0.0),
        "client_cores": round((after[0] - before[0]) / run.duration_s, 3),
        "server_cores": round((after[1] - before[1]) / run.duration_s, 3),
    }


def _quantiles(figures: list[RequestFigures], of: Callable[[RequestFigures], float]) -> dict[str, float]:
    values = sorted(map(of, figures))
    if not values:
        return {}
    found = {"p50": percentile(values, 50), "p99": percentile(values, 99), "max": values[-1]}
    return {name: round(value * 1000, 3) for name, value in found.items()}


def _processor_s(*processes: psutil.Process) -> list[float]:
    times = [process.cpu_times() for process in processes]
    return [one.user + one.system for one in times]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pin this thread, and threads that it starts, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
