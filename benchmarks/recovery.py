"""Kills a running pipeline at random moments and compares its sink with its input."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import psutil

from benchmarks.killable import (
    OUTAGES,
    RESTARTED,
    EngineKind,
    Kill,
    KillableEngine,
    KillKind,
    killable_engine,
    plan,
)
from benchmarks.object_store import OtherMachines, other_machines
from benchmarks.places import Place, PlaceKind, place
from benchmarks.run_process import PipelineProcess, expect_gone
from benchmarks.tally import StoreWatch, Tally, tally
from benchmarks.workloads import SUBJECTS, SubjectKind
from forebay.connectors.jars import installed_jars
from forebay.engine.launch import Progress, Silent
from forebay.errors import PipelineFailed, SettingError
from forebay.flink.jvm import class_archive
from forebay.settings import Settings, load_settings

EVENTS_PER_KILL: dict[EngineKind, int] = {"fake": 800, "vllm": 150}
SPARE_EVENTS = 1000
EVENTS_PER_OUTAGE = 6000
"""The stream continues during an outage."""
PATIENCE_S = 300.0
LOOK_S, STORE_LOOK_S = 0.1, 0.25
SETTLE_S = 0.1
"""Writes that were in flight at a kill may still appear for this long."""

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """`only`: one kind of kill; None: all in turn. `events` None: enough for the kills.

    `warm`: begin with the class archive that a pipeline has after its first minute.
    `work`: an empty folder. `state`: keep state and results below this address in an object store (`moto`: a
    local server), and resume in another empty folder each time; None: in `work`. `outages`: number of outages
    of that server, at the end.
    """

    kills: int
    seed: int
    work: Path
    engine: EngineKind = "fake"
    sink: PlaceKind = "files"
    app: SubjectKind = "main"
    events: int | None = None
    capacity: int = 16
    checkpoint_interval_s: float = 1.0
    rescale_to: int | None = 2
    only: KillKind | None = None
    warm: bool = False
    state: str | None = None
    outages: int = 0


@dataclass(frozen=True, slots=True)
class Killed:
    kind: KillKind
    at_s: float
    new_results: int
    next_result_s: float
    down_s: float | None = None
    parallelism: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One pipeline from its first start to its end.

    `called_again`: retries counted by the engine; None if unknown. `ahead`: maximum number of Kafka offsets
    committed before the results of their events.
    """

    planned: int
    killed: tuple[Killed, ...]
    tally: Tally
    starts: int
    seconds: float
    called_again: int | None = None
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Recovery:
    engine: EngineKind
    sink: PlaceKind
    app: SubjectKind
    seed: int
    seconds: float
    run: Run

    @property
    def passed(self) -> bool:
        """Whether every planned kill was made and every event has exactly one result."""
        run = self.run
        return run.tally.exact and not run.ahead and len(run.killed) == run.planned

    def document(self) -> dict[str, Any]:
        killed = self.run.killed
        counts = ("lost", "duplicated", "wrong", "dead_letters", "restored", "events", "results")
        return {
            "passed": self.passed,
            **{name: getattr(self.run.tally, name) for name in counts},
            "called_again": self.run.called_again,
            "ahead": self.run.ahead,
            "kills": len(killed),
            "by_kind": dict(Counter(kill.kind for kill in killed)),
            "next_result_s": next_result_s(killed),
            "rescaled": sum(kill.parallelism is not None for kill in killed),
            "engine": self.engine,
            "sink": self.sink,
            "app": self.app,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "runs": [asdict(self.run)],
        }


def next_result_s(killed: Sequence[Killed]) -> dict[str, Any]:
    def spread(kills: Sequence[Killed]) -> dict[str, float]:
        values = [kill.next_result_s for kill in kills]
        return {"p50": round(statistics.median(values), 2), "max": round(max(values), 2)} if values else {}

    kinds = sorted({kill.kind for kill in killed})
    return {
        **spread(killed),
        "by_kind": {kind: spread([k for k in killed if k.kind == kind]) for kind in kinds},
    }


def measure_recovery(
    config: RecoveryConfig,
    settings: Settings,
    *,
    progress: Progress | None = None,
    note: Note = lambda _: None,
) -> Recovery:
    """Run a pipeline, make the kills, and compare; blocks for minutes."""
    if config.sink == "kafka" and SUBJECTS[config.app].in_order:
        raise SettingError(
            f"--app {config.app} --sink kafka: what comes out depends on the order over all partitions, "
            f"which is another in each run; use --sink files"
        )
    begin_s = time.monotonic()
    kills = plan(
        config.kills,
        config.seed,
        rescale_to=config.rescale_to,
        broker=config.sink == "kafka",
        only=config.only,
        outages=config.outages,
    )
    with ExitStack() as open_:
        engine = open_.enter_context(killable_engine(config.engine, settings, progress or Silent()))
        moved = None
        if config.state is None:
            where = open_.enter_context(place(config.sink, config.work, settings))
        else:
            moved = open_.enter_context(other_machines(config.state, config.work, settings))
            where = moved.place
        run = _Runner(config, kills, engine=engine, where=where, note=note, moved=moved).run()
    return Recovery(config.engine, config.sink, config.app, config.seed, time.monotonic() - begin_s, run)


class _Runner:
    def __init__(
        self,
        config: RecoveryConfig,
        kills: tuple[Kill, ...],
        *,
        engine: KillableEngine,
        where: Place,
        note: Note,
        moved: OtherMachines | None = None,
    ) -> None:
        self._config = config
        self._moved = moved
        self._kills = kills
        self._engine = engine
        self._note = note
        self._folder = config.work
        self._file = self._folder / "pipeline.yaml"
        self._parallelism = 1
        self._subject = SUBJECTS[config.app]
        asked = EVENTS_PER_KILL[config.engine] * self._subject.events_a_call
        per_kill = self._subject.events_per_kill or asked
        count = config.events or per_kill * len(kills) + SPARE_EVENTS + config.outages * EVENTS_PER_OUTAGE
        self._events = self._subject.events(count, config.seed)
        self._place = where
        self._begin_s = time.monotonic()

    def run(self) -> Run:
        self._place.prepare(self._events)
        killed: list[Killed] = []
        with PipelineProcess(self._file, self._engine.url, self._folder) as process:
            if self._config.warm:
                settings = replace(load_settings(), home=process.home)
                jars = installed_jars(settings.connectors) if self._config.sink == "kafka" else ()
                class_archive(settings.java, jars=jars).make(settings.child_environment())
            self._start(process, 1)
            seen = 0
            for kill in self._kills:
                if not self._reached(process, seen + kill.after_results, kill.after_s):
                    self._note(f"the input was used up before the {kill.kind} could be killed")
                    break
                now = self._place.look()
                killed.append(self._kill(process, kill, now - seen))
                seen = self._place.look()
                self._note(_line(len(killed), killed[-1]))
            while process.status() is None:
                time.sleep(LOOK_S)
            if process.status() != 0:
                raise PipelineFailed(f"the pipeline ended with status {process.status()}: {process.output()}")
            calls = self._engine.calls()
            return Run(
                planned=len(self._kills),
                killed=tuple(killed),
                tally=self._tally(),
                starts=process.starts,
                seconds=round(time.monotonic() - self._begin_s, 1),
                called_again=None if calls is None else calls.total() - len(calls),
                ahead=self._place.ahead(),
            )

    def _reached(self, process: PipelineProcess, results: int, after_s: float) -> bool:
        for _ in _patiently(f"result {results}", process):
            if process.status() is not None:
                if process.status() == 0:
                    return False
                raise PipelineFailed(f"the pipeline ended with status {process.status()}: {process.output()}")
            if self._place.look() >= results:
                break
        until_s = time.monotonic() + after_s
        while time.monotonic() < until_s and process.status() is None:
            time.sleep(LOOK_S)
        return process.status() is None

    def _kill(self, process: PipelineProcess, kill: Kill, new_results: int) -> Killed:
        begin_s, moment_s = time.monotonic(), time.time()
        orphans: set[psutil.Process] = set()
        match kill.kind:
            case "job":
                process.kill()
            case "command":
                orphans = process.kill("command")
            case "jvm" | "flink":
                process.kill_part(kill.kind)
            case "engine":
                self._engine.kill()
                time.sleep(kill.down_s)
                self._engine.bring_back()
            case "broker":
                self._place.kill()
                time.sleep(kill.down_s)
                self._place.bring_back()
            case "busy" | "mute":
                assert self._moved is not None
                self._moved.outage(kill.kind, kill.down_s)
                # The time lost shows in later results.
                begin_s, moment_s = time.monotonic(), time.time()
        if kill.kind in RESTARTED:
            self._start(process, kill.parallelism)
        # All calls in flight are retried: the first answers are second attempts.
        after_engine = kill.kind == "engine"
        for _ in _patiently(f"a result after the {kill.kind} was killed", process):
            self._place.look()
            if self._written_after(moment_s + SETTLE_S, kill.kind, retried=after_engine):
                break
            if process.status() is not None:
                raise PipelineFailed(
                    f"the pipeline ended with status {process.status()} without a result after the "
                    f"{kill.kind} was killed: {process.output()}"
                )
        next_s = time.monotonic() - begin_s
        expect_gone(orphans)
        return Killed(
            kind=kill.kind,
            at_s=round(begin_s - self._begin_s, 2),
            new_results=new_results,
            next_result_s=round(next_s, 2),
            down_s=round(kill.down_s, 2) if kill.kind in {"engine", "broker", *OUTAGES} else None,
            parallelism=kill.parallelism,
        )

    def _written_after(self, moment_s: float, kind: KillKind, *, retried: bool) -> bool:
        if self._moved is not None and kind in OUTAGES:
            watch = self._moved.place.watch
            assert isinstance(watch, StoreWatch)
            return watch.written_after(moment_s, same_job=True)
        return self._place.written_after(moment_s, retried=retried)

    def _start(self, process: PipelineProcess, parallelism: int | None) -> None:
        if parallelism is not None:
            self._parallelism = parallelism
        if self._moved is not None:
            self._file = self._moved.move(process)
        self._write_pipeline(self._parallelism)
        process.start()

    def _write_pipeline(self, parallelism: int) -> None:
        # JSON is YAML.
        place = self._place.document()
        document = {
            "name": "recovery",
            **self._subject.document(),
            "capacity": self._config.capacity,
            "deadline_s": 1800.0,
            **place,
            "source": {**place["source"], **self._subject.source()},
            "checkpoint": {
                "interval_s": self._config.checkpoint_interval_s,
                **({} if self._moved is None else {"dir": self._moved.state}),
            },
            "parallelism": parallelism,
        }
        self._file.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))

    def _tally(self) -> Tally:
        expected = self._subject.expected(self._events, self._engine)
        return tally(expected, self._place.results(), self._place.letters())


def _patiently(what: str, process: PipelineProcess) -> Iterator[None]:
    # Listing a store's objects would take processor time from the measured run.
    pause_s = STORE_LOOK_S if process.environment else LOOK_S
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        yield
        time.sleep(pause_s)
    raise PipelineFailed(
        f"{what} did not appear within {PATIENCE_S:.0f} s; the run's output: {process.output()}"
    )


def _line(number: int, killed: Killed) -> str:
    away = f", away for {killed.down_s:.1f} s" if killed.down_s is not None else ""
    scaled = f", restored at parallelism {killed.parallelism}" if killed.parallelism is not None else ""
    return (
        f"{number}: {killed.kind} killed at {killed.at_s:.0f} s after {killed.new_results} new results"
        f"{away}{scaled}; next result {killed.next_result_s:.1f} s later"
    )
