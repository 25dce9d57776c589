"""Measures the cost of the pipeline: the engine alone, Forebay on Flink, and PyFlink's
AsyncFunction, in one run."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil

from benchmarks.cost import QUICK, CostOptions, cost_document, measure_cost
from benchmarks.run_process import run_module
from benchmarks.workload import System, Workload
from forebay.engine.replica import list_models
from forebay.errors import LaunchError, SettingError
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed, Mixture

Report = dict[str, Any]
Note = Callable[[str], None]

RATE_PER_S = 100.0
SLOTS = 64
IN_FLIGHT = 1000
WORKER_TIMEOUT_S = 1800.0
SPREADS = {"two in one JVM": (2, 1), "two task managers": (2, 2)}


@dataclass(frozen=True, slots=True)
class OverheadOptions:
    """`engine`: `fake`, or the URL of a real one."""

    engine: str
    quick: bool
    events: int
    capacity: int
    max_tokens: int = 32


def measure_overhead(options: OverheadOptions, note: Note, show: Note) -> Report:
    """Measure all parts that suit the engine; blocks for minutes. `note` receives the name of each part that
    begins, `show` the figures of each system: if a later one fails, the report is lost."""
    if options.engine == "fake":
        return _scripted(options, note, show)
    served = asyncio.run(list_models(options.engine))
    if not served:
        raise SettingError(f"--engine: the engine at {options.engine} serves no model")
    model = served[0].name
    load = Workload(
        events=max(1, options.events // 4) if options.quick else options.events,
        rate_per_s=None,
        capacity=options.capacity,
        url=options.engine,
        model=model,
        max_tokens=options.max_tokens,
    )
    # The first run warms up the engine and is not counted.
    run_worker("direct", replace(load, events=2 * load.capacity))
    throughput = _compare(load, note, show, "throughput")
    return {"engine": options.engine, "model": model, **throughput, "throughput": _ratios(throughput)}


def _scripted(options: OverheadOptions, note: Note, show: Note) -> Report:
    quick = options.quick
    load = Workload(events=1500 if quick else 6000, rate_per_s=RATE_PER_S, capacity=256, url=None)
    with ExitStack() as replicas:
        free = replicas.enter_context(fake_replica(ReplicaScript(delay=Mixture())))
        full = replicas.enter_context(fake_replica(ReplicaScript(delay=Mixture(), slots=SLOTS)))
        slow = replicas.enter_context(fake_replica(ReplicaScript(delay=Fixed(2.0))))
        latency = _compare(replace(load, url=free), note, show, f"latency at {RATE_PER_S:g} events/s")
        saturated = _compare(
            replace(load, events=4000 if quick else 12_000, rate_per_s=None, capacity=SLOTS, url=full),
            note,
            show,
            f"saturated, {SLOTS} slots",
        )
        note(f"checkpoints with {IN_FLIGHT} in flight")
        checkpoints = run_worker(
            "forebay",
            replace(
                load,
                events=8000 if quick else 20_000,
                rate_per_s=None,
                capacity=IN_FLIGHT,
                url=slow,
                checkpoint_s=0.25,
            ),
        )
    inside = replace(load, rate_per_s=None, capacity=IN_FLIGHT, events=40_000 if quick else 100_000)
    note("throughput without HTTP")
    report: Report = {
        "engine": "fake",
        **latency,
        "saturated": {**saturated, **_ratios(saturated)},
        "checkpoints": checkpoints,
        "in_process": run_worker("forebay", inside),
        "subtasks": {name: _on_subtasks(inside, name, *spread, note) for name, spread in SPREADS.items()},
        "cost": cost_document(measure_cost(QUICK if quick else CostOptions(), note)),
    }
    return report


def _on_subtasks(load: Workload, name: str, parallelism: int, task_managers: int, note: Note) -> Report:
    note(f"without HTTP: {name}")
    return run_worker("forebay", replace(load, parallelism=parallelism, task_managers=task_managers))


def _compare(load: Workload, note: Note, show: Note, what: str) -> Report:
    systems: tuple[System, ...] = ("direct", "forebay", "async_function")
    report: Report = {}
    for system in systems:
        note(f"{what}: {system}")
        found = report[system] = run_worker(system, load)
        show(f"{system}: {found['events_per_s']:.1f} events/s, {found['tokens_per_s']:.0f} tokens/s")
    return report


def _ratios(report: Report) -> Report:
    direct = report["direct"]
    return {
        f"{system}_to_direct": {
            "events": _share(report[system]["events_per_s"], direct["events_per_s"]),
            "tokens": _share(report[system]["tokens_per_s"], direct["tokens_per_s"]),
        }
        for system in ("forebay", "async_function")
    }


def _share(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0


def run_worker(system: System, load: Workload) -> Report:
    order = json.dumps({"system": system, "load": asdict(load)})
    report: Report = json.loads(run_module("benchmarks.worker", order, timeout_s=WORKER_TIMEOUT_S))
    if report["answered"] != load.events:
        raise LaunchError(f"the {system} system answered {report['answered']} of {load.events} events")
    return report


@contextmanager
def fake_replica(script: ReplicaScript) -> Iterator[str]:
    """A fake replica pinned to the last core, so that every system loses the same."""
    with ReplicaProcess(script) as replica:
        psutil.Process(replica.pid).cpu_affinity([max(os.sched_getaffinity(0))])
        yield replica.url
