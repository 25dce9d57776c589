"""Measures processor and memory of each part of a run, from idle to its highest rate."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import psutil

from forebay.bench.resources import ProcessUse, check_proc, process_use, used_between
from forebay.bench.stream.process import RunProcess
from forebay.errors import LaunchError
from forebay.flink.jvm import class_archive
from forebay.pipeline.job_graph import OPERATOR
from forebay.settings import load_settings
from forebay.testing.replica import ReplicaProcess, ReplicaScript, fetch_work
from forebay.testing.script import Fixed

WARM_PER_S = 100.0
CALL_S = 0.05
CAPACITY = 256
START_TIMEOUT_S = 300.0
REST_S = 3.0
"""A run without answers for this long is idle."""
POLL_S = 0.05

JVM, CLIENT, COMMAND = "jvm", "client", "command"
"""The processes of a run: Flink's JVM, with the Python in it; the Python process that holds it; `forebay
run`."""
JIT, MEMORY, FLINK, SOURCE, TASK, CALLS = "jit", "memory", "flink", "source", "operator", "calls"
"""The parts of the JVM: its compilers, its garbage collector, Flink's own threads, the source's task, the
operator's task, and the event loop with the HTTP client."""
PARTS = (JIT, MEMORY, FLINK, SOURCE, TASK, CALLS, CLIENT, COMMAND)
NAMES = {
    "C1 Comp": JIT,
    "C2 Comp": JIT,
    "VM Thre": MEMORY,
    "GC Thre": MEMORY,
    "G1 ": MEMORY,
    "Source:": SOURCE,
    "Source ": SOURCE,
    "forebay-feed": SOURCE,
    "kafka-c": SOURCE,
    f"{OPERATOR} ": TASK,
    "forebay-calls": CALLS,
}
"""Prefixes of thread names by part; newer versions of Java keep 7 characters."""


def part_of(thread: str) -> str:
    return next((part for name, part in NAMES.items() if thread.startswith(name)), FLINK)


@dataclass(frozen=True, slots=True)
class CostOptions:
    """Seconds per load, of the warm-up, and of settling at each new load."""

    seconds: float = 30.0
    warm_s: float = 45.0
    settle_s: float = 20.0
    loads: tuple[float, ...] = (0.0, 1.0, 100.0, math.inf)


QUICK = CostOptions(10.0, 15.0, 2.0)


@dataclass(frozen=True, slots=True)
class LoadCost:
    """What a run used under one load.

    `rate_per_s`: events offered per second; None: as many as the run takes. `processor_s`: by part;
    `outside_s`: of the scripted engine and the source. `memory_mb`: of each process at the end, shared pages
    by proportion. `threads`: processor seconds by process and thread name.
    """

    rate_per_s: float | None
    seconds: float
    events: int
    processor_s: Mapping[str, float]
    outside_s: Mapping[str, float]
    memory_mb: Mapping[str, float]
    threads: Mapping[str, Mapping[str, float]]

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds

    @property
    def cores(self) -> float:
        return sum(self.processor_s.values()) / self.seconds

    def ms_per_event(self, processor_s: float) -> float | None:
        return 1000 * processor_s / self.events if self.events else None


@dataclass(frozen=True, slots=True)
class Cost:
    """`first_request_s`: from the start of the command to the first request at the engine."""

    processor: str
    cores: int
    first_request_s: float
    loads: tuple[LoadCost, ...]


Note = Callable[[str], None]


def measure_cost(options: CostOptions, note: Note = lambda _: None) -> Cost:
    """Measure a run under one load after the other; blocks for minutes."""
    check_proc()
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="forebay-cost-")))
        replica = opened.enter_context(ReplicaProcess(ReplicaScript(delay=Fixed(CALL_S))))
        feed = opened.enter_context(started_feed())
        note("starting the run")
        with started_run(folder / "run", replica.url, feed) as run:
            return _measure(run, feed, replica, options, note)


def _measure(run: Run, feed: Feed, replica: ReplicaProcess, options: CostOptions, note: Note) -> Cost:
    note(f"warming up: {options.warm_s:.0f} s")
    feed.pace(WARM_PER_S)
    time.sleep(options.warm_s)
    loads = []
    for rate_per_s in options.loads:
        note(f"{_words(rate_per_s)}: {options.seconds:.0f} s")
        feed.pace(rate_per_s)
        time.sleep(options.settle_s)
        if not rate_per_s:
            await_rest(replica, run.check)
        before, events, began_s = _look(run, feed, replica), answers(replica), time.monotonic()
        time.sleep(options.seconds)
        run.check()
        after = _look(run, feed, replica)
        seconds, events = time.monotonic() - began_s, answers(replica) - events
        loads.append(_load_cost(rate_per_s, seconds, events, before, after))
    return Cost(processor_name(), len(os.sched_getaffinity(0)), run.first_request_s, tuple(loads))


def await_rest(replica: ReplicaProcess, check: Callable[[], None] = lambda: None) -> None:
    """Block until the replica has given no answer for `REST_S`."""
    until_s = time.monotonic() + START_TIMEOUT_S
    now, before = answers(replica), -1
    while now != before and time.monotonic() < until_s:
        check()
        time.sleep(REST_S)
        now, before = answers(replica), now


def _words(rate_per_s: float) -> str:
    if math.isinf(rate_per_s):
        return "as many events as the run takes"
    return f"{rate_per_s:g} events/s" if rate_per_s else "idle"


def _load_cost(
    rate_per_s: float,
    seconds: float,
    events: int,
    before: Mapping[str, ProcessUse],
    after: Mapping[str, ProcessUse],
) -> LoadCost:
    threads = {name: used_between(before[name], after[name]) for name in after}
    parts = dict.fromkeys(PARTS, 0.0)
    for thread, processor_s in threads[JVM].items():
        parts[part_of(thread)] += processor_s
    for process in (CLIENT, COMMAND):
        parts[process] = sum(threads[process].values())
    return LoadCost(
        rate_per_s=None if math.isinf(rate_per_s) else rate_per_s,
        seconds=round(seconds, 2),
        events=events,
        processor_s={part: round(used_s, 3) for part, used_s in parts.items()},
        outside_s={name: round(sum(threads[name].values()), 3) for name in ("engine", "source")},
        memory_mb={name: round(after[name].memory_mb, 1) for name in (JVM, CLIENT, COMMAND)},
        threads={
            name: {thread: round(used_s, 3) for thread, used_s in used.items() if used_s >= 0.005}
            for name, used in threads.items()
        },
    )


def _look(run: Run, feed: Feed, replica: ReplicaProcess) -> dict[str, ProcessUse]:
    assert replica.pid is not None
    processes = {**run.processes(), "engine": replica.pid, "source": feed.pid}
    return {name: process_use(pid) for name, pid in processes.items()}


def answers(replica: ReplicaProcess) -> int:
    return fetch_work(replica.url).answers


def processor_name() -> str:
    from forebay.engine.launch.dtype import read_processor

    return read_processor().name


class Feed:
    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self._process = process
        self.url = url

    @property
    def pid(self) -> int:
        return self._process.pid

    def pace(self, rate_per_s: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rate_per_s}\n".encode())
        self._process.stdin.flush()


@contextmanager
def started_feed() -> Iterator[Feed]:
    """A feed in its own process for the length of the block; it sends nothing yet."""
    command = [sys.executable, "-m", "benchmarks.feeds"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().decode().strip()
            if not url:
                raise LaunchError("the feed did not start; see its standard error")
            yield Feed(process, url)
        finally:
            process.kill()


class Run:
    """A `forebay run` that has sent its first request."""

    def __init__(self, process: RunProcess, replica_url: str) -> None:
        self._process = process
        before, began_s = fetch_work(replica_url).calls, time.monotonic()
        while fetch_work(replica_url).calls == before:
            process.check()
            if time.monotonic() - began_s > START_TIMEOUT_S:
                detail = process.output()
                raise LaunchError(f"the run made no request within {START_TIMEOUT_S:.0f} s: {detail}")
            time.sleep(POLL_S)
        self.first_request_s = round(time.monotonic() - began_s, 2)
        self.check, self.output = process.check, process.output

    def processes(self) -> dict[str, int]:
        jvm = self._process.jvm()
        if jvm is None:
            raise LaunchError(f"the run that is measured has no JVM: {self._process.output()}")
        return {JVM: jvm, CLIENT: psutil.Process(jvm).ppid(), COMMAND: self._process.pid}


@contextmanager
def started_run(folder: Path, replica_url: str, feed: Feed, *options: str) -> Iterator[Run]:
    """A `forebay run` with these options over the feed; its files are in `folder`."""
    folder.mkdir()
    settings = load_settings()
    # Otherwise a machine's first run makes it while it is measured.
    class_archive(settings.java).make(settings.child_environment())
    document = {
        "name": "cost",
        "source": {"type": "sse", "url": feed.url},
        "prompt": "In one word, what is this about? {{ text }}",
        "capacity": CAPACITY,
        "sink": {"type": "jsonl", "path": str(folder / "out")},
        "checkpoint": {"dir": str(folder / "state")},
    }
    pipeline = folder / "cost.yaml"
    pipeline.write_bytes(orjson.dumps(document))
    feed.pace(1)
    with RunProcess(pipeline, (replica_url,), folder, options) as process:
        process.start()
        yield Run(process, replica_url)


def cost_document(found: Cost) -> dict[str, Any]:
    loads = [
        {
            **asdict(load),
            "events_per_s": round(load.events_per_s, 2),
            "cores": round(load.cores, 4),
            "ms_per_event": load.ms_per_event(sum(load.processor_s.values())),
        }
        for load in found.loads
    ]
    return {**asdict(found), "loads": loads}
