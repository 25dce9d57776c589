"""Samples the memory of a pipeline between topics: while events pass, while its job restarts, and at rest."""

from __future__ import annotations

import math
import os
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import orjson

from benchmarks.additions import open_page, page_address
from benchmarks.cost import answers, processor_name
from benchmarks.places import kafka_to_start
from benchmarks.run_process import Part, PipelineProcess
from benchmarks.workload import prompt_of
from forebay.bench.resources import process_use
from forebay.connectors.jars import KAFKA, install_jar
from forebay.errors import LaunchError
from forebay.flink.java import java_home
from forebay.pages.charts import Line, line_figure
from forebay.pages.picture import Picture
from forebay.pages.svg import COLOURS
from forebay.pages.units import NUMBER, Unit
from forebay.settings import Settings
from forebay.testing.kafka import LocalKafka, local_kafka
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Fixed

PROCESSES: dict[str, Part] = {"jvm_mb": "jvm", "client_mb": "flink", "command_mb": "command"}
SERIES = (*PROCESSES, "heap_mb", "metaspace_mb", "malloc_mb", "classes", "threads")
"""`jvm_mb`, `client_mb`, `command_mb`: memory of each process (PSS). `heap_mb`: used, after a collection
unless `garbage`.
`malloc_mb`: native memory that the JVM itself has allocated; Python's is not in it."""
TRACKED = {"JDK_JAVA_OPTIONS": "-XX:NativeMemoryTracking=summary"}
PARTITIONS = 4
BATCH, MOST_AHEAD = 500, 1500
EVENTS_BETWEEN_RESTARTS = 500
WAIT_S, POLL_S = 900.0, 0.25
NOTE_S = 300.0
TOPIC = {"retention.bytes": "67108864", "segment.bytes": "16777216"}
OFTEN = {
    "restart-strategy.exponential-delay.initial-backoff": "100 ms",
    "restart-strategy.exponential-delay.max-backoff": "1 s",
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": str(2**31 - 1),
}
BLOCKS = 10
STUDENT = 2.306
"""Student's t of a 95 % confidence interval, for `BLOCKS` - 2 degrees of freedom."""
FLAT = 0.01


@dataclass(frozen=True, slots=True)
class SoakOptions:
    hours: float = 1.0
    events: int = 3_000_000
    restarts: int = 200
    every_s: float = 10.0
    garbage: bool = False


def trend(points: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """Growth of the second half (`slope`), with its 95 % confidence interval (`low`, `high`). `level`: growth
    is not certain, or below `FLAT` of the mean. None for too few points."""
    half = points[len(points) // 2 :]
    if len(half) < 2 * BLOCKS or half[0][0] == half[-1][0]:
        return None
    # Neighbouring samples resemble each other; means of blocks much less.
    edges = [len(half) * number // BLOCKS for number in range(BLOCKS + 1)]
    blocks = [half[begin:end] for begin, end in pairwise(edges)]
    xs, ys = ([statistics.fmean(point[axis] for point in block) for block in blocks] for axis in (0, 1))
    slope, base = statistics.linear_regression(xs, ys)
    errors = sum((y - base - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    spread = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
    reach = STUDENT * math.sqrt(errors / (BLOCKS - 2) / spread)
    grown = slope * (half[-1][0] - half[0][0])
    level = slope - reach <= 0 or grown < FLAT * statistics.fmean(ys)
    return {"slope": slope, "low": slope - reach, "high": slope + reach, "level": level}


def read_native(text: str) -> dict[str, float] | None:
    """The figures in what `GC.heap_info` and `VM.native_memory` of `jcmd` print; None if one is missing."""
    found = {}
    for name, pattern in (
        ("heap_mb", r"generation +total \d+K, used (\d+)K"),
        ("metaspace_mb", r"Metaspace +used (\d+)K"),
        ("malloc_mb", r"malloc: (\d+)KB"),
        ("classes", r"\(classes #(\d+)\)"),
        ("threads", r"\(threads #(\d+)\)"),
    ):
        values = re.findall(pattern, text)
        if not values:
            return None
        found[name] = sum(map(int, values)) * (1024 / 1e6 if name.endswith("_mb") else 1)
    return found


Sample = dict[str, Any]
Note = Callable[[str], None]
PARTS = {"events": "events", "restarts": "restarts", "rest": "hours"}
"""Each part of a soak, and the figure over which its growth is measured."""


def measure_soak(options: SoakOptions, settings: Settings, work: Path, note: Note) -> dict[str, Any]:
    """Blocks for hours, or until Ctrl-C: then the report has what was measured, and is not `complete`.

    `work`: an empty folder.
    """
    complete = True
    with ExitStack() as opened:
        kafka = opened.enter_context(local_kafka(kafka_to_start(settings), work / "kafka"))
        replica = opened.enter_context(ReplicaProcess(ReplicaScript(delay=Fixed(0.0))))
        soak = _Soak(options, kafka, replica, work, note)
        install_jar(KAFKA, soak.run.home / "connectors", settings.connectors_from or str(settings.connectors))
        opened.enter_context(soak.run)
        try:
            soak.measure()
        except KeyboardInterrupt:
            complete = False
    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        **asdict(options),
        "complete": complete,
        **soak_report(soak.samples),
        "unread": soak.unread,
    }


def soak_report(samples: Sequence[Sample]) -> dict[str, Any]:
    """`level`: every series of every part was measured, and levels off."""
    trends = {part: {name: trend(points(samples, part, name)) for name in SERIES} for part in PARTS}
    level = all(found is not None and found["level"] for each in trends.values() for found in each.values())
    return {"level": level, "trends": trends, "samples": samples}


def points(samples: Sequence[Sample], part: str, name: str) -> list[tuple[float, float]]:
    return [(one[PARTS[part]], one[name]) for one in samples if one["part"] == part]


class _Soak:
    def __init__(
        self, options: SoakOptions, kafka: LocalKafka, replica: ReplicaProcess, work: Path, note: Note
    ) -> None:
        self._options, self._replica, self._note = options, replica, note
        self._bootstrap = kafka.bootstrap
        self._fed = threading.Event()
        self._feeder: Future[None] = Future()
        self._begun_s = self._sampled_s = self._noted_s = time.monotonic()
        self._jvm = 0
        self._name = ""
        self.samples: list[Sample] = []
        self.unread = 0
        self._letters = work / "letters"
        self._asked = work / "asked"
        collect = "" if options.garbage else "GC.run\n"
        self._asked.write_text(f"{collect}GC.heap_info\nVM.native_memory summary\n")
        access = {"type": "kafka", "bootstrap": self._bootstrap}
        document = {
            "name": "soak",
            "source": {**access, "topics": ["events"], "group": "soak"},
            "prompt": "{{ text }}",
            "capacity": 64,
            "sampling": {"max_tokens": 8},
            "sink": {**access, "topic": "results"},
            "dead_letters": {"type": "jsonl", "path": str(self._letters)},
            "flink": OFTEN,
        }
        pipeline = work / "soak.yaml"
        pipeline.write_bytes(orjson.dumps(document))
        self.run = PipelineProcess(pipeline, replica.url, work)
        self.run.options = ("--ui",)
        self.run.environment = TRACKED

    def measure(self) -> None:
        from benchmarks.topic_client import make_topic

        for topic in ("events", "results"):
            make_topic(self._bootstrap, topic, PARTITIONS, **TOPIC)
        self.run.start()
        with ThreadPoolExecutor(1) as pool:
            self._feeder = pool.submit(self._feed)
            try:
                self._until(lambda: answers(self._replica) > 0)
                self._jvm = self._pid("jvm")
                with open_page(page_address(self.run.output())):
                    self._parts()
            finally:
                self._fed.set()

    def _parts(self) -> None:
        self._part("events")
        self._until(lambda: answers(self._replica) >= self._options.events, math.inf)
        self._part("restarts")
        while self._restarts() < self._options.restarts:
            self._restart()
        self._part("rest")
        self._fed.set()
        until_s = time.monotonic() + 3600 * self._options.hours
        self._until(lambda: time.monotonic() >= until_s, math.inf)

    def _part(self, name: str) -> None:
        self._name = name
        self._note_progress("from")

    def _note_progress(self, how: str) -> None:
        self._noted_s = time.monotonic()
        self._note(f"{self._name}: {how} {answers(self._replica):,} events and {self._restarts()} restarts")

    def _feed(self) -> None:
        for batch in count():
            while answers(self._replica) < batch * BATCH - MOST_AHEAD and not self._fed.wait(POLL_S):
                pass
            if self._fed.is_set():
                return
            numbers = range(batch * BATCH, (batch + 1) * BATCH)
            self._produce(orjson.dumps({"n": n, "text": prompt_of(n)}) for n in numbers)

    def _produce(self, values: Iterable[bytes]) -> None:
        from benchmarks.topic_client import produce

        produce(self._bootstrap, "events", ({"value": value} for value in values))

    def _restart(self) -> None:
        """Fail the task that writes dead letters: a file takes the place of its folder."""
        before, aside = self._restarts(), self._letters.with_name("aside")
        self._letters.rename(aside)
        self._letters.touch()
        self._produce([b"{"])
        self._until(lambda: self._restarts() > before)
        self._letters.unlink()
        aside.rename(self._letters)
        wanted = answers(self._replica) + EVENTS_BETWEEN_RESTARTS
        self._until(lambda: answers(self._replica) >= wanted)

    def _restarts(self) -> int:
        return self.run.log.read_text(errors="replace").count("Flink restarts the job")

    def _until(self, done: Callable[[], bool], wait_s: float = WAIT_S) -> None:
        """Take samples meanwhile. Raises `LaunchError`, and what the feeder raised."""
        until_s = time.monotonic() + wait_s
        while not done():
            if time.monotonic() >= until_s:
                raise LaunchError(f"nothing happened within {wait_s:.0f} s: {self.run.output()}")
            time.sleep(POLL_S)
            if self.run.status() is not None:
                raise LaunchError(f"the run ended with status {self.run.status()}: {self.run.output()}")
            if self._feeder.done():
                self._feeder.result()
            if self._name and time.monotonic() >= self._sampled_s + self._options.every_s:
                self._sampled_s = time.monotonic()
                self._sample()
            if self._name and time.monotonic() >= self._noted_s + NOTE_S:
                self._note_progress("so far")

    def _sample(self) -> None:
        if self._pid("jvm") != self._jvm:
            raise LaunchError(f"the run has another JVM: {self.run.output()}")
        native = read_native(self._native())
        if native is None:
            # On a busy machine the JVM may not answer in time.
            self.unread += 1
            return
        used = {name: process_use(self._pid(part)).memory_mb for name, part in PROCESSES.items()}
        self.samples.append(
            {
                "part": self._name,
                "hours": (time.monotonic() - self._begun_s) / 3600,
                "events": answers(self._replica),
                "restarts": self._restarts(),
                **{name: round(value, 2) for name, value in (used | native).items()},
            }
        )

    def _native(self) -> str:
        # Each `jcmd` starts a JVM of its own.
        command = (str(java_home() / "bin" / "jcmd"), str(self._jvm), "-f", str(self._asked))
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def _pid(self, part: Part) -> int:
        found = self.run.processes(part)
        if not found:
            raise LaunchError(f"the run has no process {part!r}: {self.run.output()}")
        return min(found, key=lambda process: process.create_time()).pid


def soak_picture(document: dict[str, Any]) -> Picture:
    names = [name for name in SERIES if name.endswith("_mb")]
    figures = [
        line_figure(
            part,
            [
                Line(name.removesuffix("_mb"), points(document["samples"], part, name), colour)
                for name, colour in zip(names, COLOURS, strict=False)
            ],
            label=f"memory over {over}",
            x_name=over,
            x_unit=NUMBER,
            y_unit=Unit("MB"),
        )
        for part, over in PARTS.items()
    ]
    return Picture("Memory of a pipeline between topics", figures, columns=3)
