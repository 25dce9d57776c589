"""Measures the cost of the pipeline: the engine alone, Forebay on Flink, and PyFlink's
AsyncFunction, in one run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import psutil

from benchmarks.cost import (
    CALL_S,
    COMMAND,
    QUICK,
    CostOptions,
    Feed,
    Run,
    answers,
    await_rest,
    cost_document,
    measure_cost,
    processor_name,
    started_feed,
    warm_run,
)
from benchmarks.run_process import run_module
from benchmarks.workload import System, Workload
from forebay.bench.resources import process_use
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


PAGE_RUNS: dict[str, tuple[str, ...]] = {"without": (), "page": ("--ui",)}


@dataclass(frozen=True, slots=True)
class PageOptions:
    """`rate_per_s`: events offered. Seconds of each turn, of settling before it, and of the warm-up of each
    run."""

    rounds: int = 5
    rate_per_s: float = 1000.0
    seconds: float = 8.0
    settle_s: float = 2.0
    warm_s: float = 10.0


def measure_page(options: PageOptions, note: Note = lambda _: None) -> Report:
    """Compare a run whose page is open with one without a page, in turn; blocks for minutes.

    The page is read by one client as a browser does it, and a second one never reads what it asked for.
    """
    turns: dict[str, list[Report]] = {name: [] for name in PAGE_RUNS}
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="forebay-page-")))
        runs = {}
        for name, options_of_run in PAGE_RUNS.items():
            note(f"starting the run: {name}")
            # One each: a replica counts the answers of different requests, and both runs make the same.
            replica = opened.enter_context(ReplicaProcess(ReplicaScript(delay=Fixed(CALL_S))))
            feed = opened.enter_context(started_feed())
            run = opened.enter_context(warm_run(folder / name, replica.url, feed, note, *options_of_run))
            feed.pace(options.rate_per_s)
            time.sleep(options.warm_s)
            feed.pace(0)
            runs[name] = run, feed, replica
        url = page_address(runs["page"][0].output())
        for number in range(options.rounds):
            for name in sorted(turns, reverse=number % 2 == 0):
                with open_page(url) if name == "page" else nullcontext():
                    found = _turn(*runs[name], options)
                await_rest(runs[name][2])
                turns[name].append(found)
                words = " ".join(f"{figure} {value:.4g}" for figure, value in found.items())
                note(f"round {number + 1} of {options.rounds}, {name}: {words}")
    return page_report(turns)


def page_address(output: str) -> str:
    found = re.search(r"watch this run at (\S+)", output)
    if found is None:
        raise LaunchError(f"the run has no page: {output}")
    return found[1]


def _turn(run: Run, feed: Feed, replica: ReplicaProcess, options: PageOptions) -> Report:
    feed.pace(options.rate_per_s)
    time.sleep(options.settle_s)
    run.check()
    used, before, began_s = _used_s(run), answers(replica), time.monotonic()
    time.sleep(options.seconds)
    seconds, done = time.monotonic() - began_s, answers(replica) - before
    used = {name: after_s - used[name] for name, after_s in _used_s(run).items()}
    feed.pace(0)
    return {
        "answers_per_s": done / seconds,
        "ms_per_answer": 1000 * sum(used.values()) / max(done, 1),
        "command_cores": used[COMMAND] / seconds,
    }


def _used_s(run: Run) -> dict[str, float]:
    return {name: process_use(pid).processor_s for name, pid in run.processes().items()}


def page_report(turns: dict[str, list[Report]]) -> Report:
    """The medians of each way's turns; `ratio` is the median of the rounds' ratios of throughput."""
    medians = {
        name: {figure: round(median(turn[figure] for turn in found), 4) for figure in found[0]}
        for name, found in turns.items()
    }
    pairs = zip(turns["page"], turns["without"], strict=True)
    ratios = [round(_share(page["answers_per_s"], bare["answers_per_s"]), 4) for page, bare in pairs]
    return {"processor": processor_name(), **medians, "ratios": ratios, "ratio": median(ratios)}


@contextmanager
def open_page(url: str) -> Iterator[None]:
    """A client that reads the page as a browser does, and one that never reads, during the block."""
    ended = threading.Event()

    def read() -> None:
        shown: dict[str, int] = {}
        _get(url)
        with urlopen(f"{url}events", timeout=WORKER_TIMEOUT_S) as events:
            while not ended.is_set() and (line := events.readline()):
                if not line.startswith(b"data: "):
                    continue
                wanted = json.loads(line[6:])
                for part in [name for name, version in wanted.items() if shown.get(name) != version]:
                    _get(f"{url}part/{part}")
                shown = wanted

    reader = threading.Thread(target=read, daemon=True)
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port))) as silent:
        for part in ("", "events"):
            silent.sendall(f"GET /{path}{part} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        reader.start()
        try:
            yield
            if not reader.is_alive():
                raise LaunchError("the page could not be read while it was measured")
        finally:
            ended.set()
            reader.join()


def _get(url: str) -> None:
    with urlopen(url, timeout=WORKER_TIMEOUT_S) as answer:
        answer.read()


@contextmanager
def fake_replica(script: ReplicaScript) -> Iterator[str]:
    """A fake replica pinned to the last core, so that every system loses the same."""
    with ReplicaProcess(script) as replica:
        psutil.Process(replica.pid).cpu_affinity([max(os.sched_getaffinity(0))])
        yield replica.url
