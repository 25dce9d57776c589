"""Measures how long a new pipeline takes for a file of events, relative to the same requests
without it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from benchmarks.jobs import drive
from benchmarks.workload import Workload, prompt_of
from forebay.connectors.files.sink import read_jsonl_sink
from forebay.errors import LaunchError
from forebay.pipeline.load import parse_spec
from forebay.pipeline.plan import Plan
from forebay.pipeline.run import run_pipeline
from forebay.settings import Settings
from forebay.testing.replica import ReplicaProcess, ReplicaScript, WorkReport, fetch_work
from forebay.testing.script import Fixed

WAYS = ("direct", "pipeline")
TARGET = 1.2
LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class PipelineStartOptions:
    """`rounds` of `events` each way, `capacity` of them at a time."""

    events: int = 256
    capacity: int = 64
    rounds: int = 1
    first_token_s: float = 0.3
    decode_s: float = 9.7
    chunks: int = 100


class Stopwatch:
    """Measures from the first call to the last complete answer, by polling the engine's counts."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._last_s = 0.0
        self.answers = 0

    def look(self, work: WorkReport, now_s: float) -> None:
        if work.calls and self._first_s is None:
            self._first_s = now_s
        if work.answers > self.answers:
            self.answers, self._last_s = work.answers, now_s

    @property
    def took_s(self) -> float:
        """Seconds between the two; 0 before the first answer."""
        return 0.0 if self._first_s is None else max(0.0, self._last_s - self._first_s)


def measure_pipeline_start(
    options: PipelineStartOptions,
    work: Path,
    settings: Settings,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure both ways in turn; blocks."""
    took_s: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(1, options.rounds + 1):
        for way in WAYS:
            note(f"round {number} of {options.rounds}: {way}")
            with ReplicaProcess(_script(options)) as replica, _watched(replica.url) as watch:
                if way == "direct":
                    load = Workload(options.events, None, options.capacity, replica.url)
                    answered = len(asyncio.run(drive(load)))
                else:
                    answered = _run(options, work / str(number), replica.url, settings)
            if answered != options.events:
                raise LaunchError(f"{way}: {answered} of {options.events} events were answered")
            took_s[way].append(watch.took_s)
    return report(options, took_s)


def report(options: PipelineStartOptions, took_s: dict[str, list[float]]) -> dict[str, Any]:
    seconds = {way: median(rounds) for way, rounds in took_s.items()}
    ratio = seconds["pipeline"] / seconds["direct"]
    return {
        **asdict(options),
        **{f"{way}_s": round(taken, 2) for way, taken in seconds.items()},
        "ratio": ratio,
        "target": TARGET,
        "passed": ratio <= TARGET,
    }


@contextmanager
def _watched(url: str) -> Iterator[Stopwatch]:
    watch, ended = Stopwatch(), threading.Event()

    def follow() -> None:
        while not ended.wait(LOOK_S):
            watch.look(fetch_work(url), time.monotonic())

    thread = threading.Thread(target=follow, name="stopwatch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()
        watch.look(fetch_work(url), time.monotonic())


def _run(options: PipelineStartOptions, folder: Path, url: str, settings: Settings) -> int:
    folder.mkdir(parents=True)
    lines = [orjson.dumps({"text": prompt_of(index)}) for index in range(options.events)]
    (folder / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    spec = parse_spec(
        {
            "name": "pipeline-start",
            "source": {"type": "jsonl", "path": "events.jsonl"},
            "prompt": "{{ text }}",
            "engine": {"url": url, "model": "fake"},
            "capacity": options.capacity,
            "sink": {"type": "jsonl", "path": "results"},
        },
        base=folder,
    )
    run_pipeline(Plan(spec, settings), nullcontext(()))
    return sum(1 for _ in read_jsonl_sink(folder / "results"))


def _script(options: PipelineStartOptions) -> ReplicaScript:
    return ReplicaScript(
        delay=Fixed(options.first_token_s), decode=Fixed(options.decode_s), chunks=options.chunks
    )
