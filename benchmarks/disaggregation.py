"""Tests the planner's split of prefill and decode replicas in the simulator, against all splits.

A workload must last much longer than an answer: a few hundred requests fill no decode replica, so every rate
looks possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forebay.planning.simulate import Scenario, Slo
from forebay.planning.simulate.disaggregation import Split, Transfer, TwoPools, at_rate
from forebay.planning.simulate.engine import EngineModel
from forebay.planning.simulate.traces import PoissonArrivals, TraceRequest, read_trace
from forebay.planning.workload import phase_work, split_of

GOAL = 0.95
STEPS = 8
MAX_DOUBLINGS = 16
CODE, CONVERSATION = "azure_llm_2023_code.csv", "mooncake_conversation.jsonl"


def workloads(data: Path, requests: int) -> dict[str, list[TraceRequest]]:
    made = {
        "code": read_trace(data / CODE)[:requests],
        "long conversation": read_trace(data / CONVERSATION)[:requests],
        "conversation": PoissonArrivals(requests, 1.0, 300, 600).make(),
        "summaries": PoissonArrivals(requests, 1.0, 3000, 200, seed=1).make(),
    }
    return {name: at_rate(lengths) for name, lengths in made.items()}


def measure(
    loads: dict[str, list[TraceRequest]],
    engine: EngineModel,
    replicas: int,
    slo: Slo,
    transfer: Transfer,
    *,
    tell: Callable[[str], None] = lambda part: None,
) -> dict[str, Any]:
    """Per workload and split: the highest rate with `GOAL` of the requests within the SLO."""
    found = {}
    for name, load in loads.items():
        tell(name)
        found[name] = _measure_one(load, engine, replicas, slo, transfer)
    return {
        "engine": engine.name,
        "replicas": replicas,
        "goal": GOAL,
        "slo": asdict(slo),
        "transfer": asdict(transfer),
        "workloads": found,
        "passed": all(one["off_by"] <= 1 for one in found.values()),
    }


def _measure_one(
    load: Sequence[TraceRequest], engine: EngineModel, replicas: int, slo: Slo, transfer: Transfer
) -> dict[str, Any]:
    pools, mixed = TwoPools(load, engine, slo, transfer), Scenario(load, engine, replicas, slo)
    work = phase_work(load, engine, slo.tpot_s)
    planned = split_of(replicas, work)
    start = replicas / (work.prefill_s + work.decode_s)
    rates = {}
    for prefill in range(1, replicas):
        split = Split(prefill, replicas - prefill)
        rates[prefill] = most_rate(lambda rate, split=split: pools.goodput(split, 1 / rate), start, GOAL)  # type: ignore[misc]
    best = max(rates, key=rates.__getitem__)
    return {
        "requests": len(load),
        "planned_prefill": planned.prefill,
        "best_prefill": best,
        "off_by": abs(planned.prefill - best),
        "planned_per_s": rates[planned.prefill],
        "best_per_s": rates[best],
        "mixed_per_s": most_rate(lambda rate: mixed.run("expected_ttft", 1 / rate).goodput, start, GOAL),
        "rates_per_s": {str(prefill): rate for prefill, rate in rates.items()},
    }


def most_rate(goodput: Callable[[float], float], rate: float, goal: float) -> float:
    """The highest rate, within 0.5 %, that reaches `goal`; assumes that goodput falls as it grows."""
    low, high = 0.0, rate
    for _ in range(MAX_DOUBLINGS):
        if goodput(high) < goal:
            break
        low, high = high, 2 * high
    for _ in range(MAX_DOUBLINGS):
        if low:
            break
        if goodput(high / 2) >= goal:
            low = high / 2
        else:
            high /= 2
    if not low:
        return 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if goodput(middle) >= goal:
            low = middle
        else:
            high = middle
    return low
