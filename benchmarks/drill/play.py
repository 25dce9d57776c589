"""Play a scenario with real processes: run its pipeline, make its faults, resume, compare what came out."""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from benchmarks.drill.check import check
from benchmarks.drill.link import Link
from benchmarks.drill.places import Places
from benchmarks.drill.process import GONE_S, PipelineRun, go_on
from benchmarks.drill.scenario import RESTARTS, SHIMMED, Fault, FaultKind, Scenario
from benchmarks.drill.shim import Shim
from benchmarks.drill.workload import name_of, workload
from forebay.connectors.jars import KAFKA, install_jar
from forebay.errors import ForebayError, PipelineFailed
from forebay.processes import wait_gone
from forebay.testing.kafka import LocalKafka
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Mixture

POLL_S = 0.03
LOOK_S = 1.0
"""Between two looks at all that a pipeline without an end has committed."""
SETTLE_S = 15.0
"""A fault that was over before this long is the reason of an end of the command by itself."""
ANSWER_S = 0.04
SLOTS = 2
SLOW_MS = 30
STATE = ".forebay"
FINISHED = "has finished: its results are in the sink"
"""What a command says whose pipeline came to its end before; what is in the sink shows whether it did."""


@dataclass(frozen=True)
class Surroundings:
    """What scenarios run with. `command`: what is before `run` on the command line. `kafka`: a node, where
    one is needed, and where its connector comes from. `patience_s`: a run in which nothing moves for so long
    stands still."""

    command: tuple[str, ...] = (sys.executable, "-m", "forebay")
    kafka: LocalKafka | None = None
    connectors_from: str | None = None
    patience_s: float = 120.0


@dataclass(frozen=True)
class Outcome:
    """`problems`: what was wrong, a sentence each. `made`: the faults that were made before the input was
    used up. `starts`: how often the command was given."""

    scenario: Scenario
    problems: tuple[str, ...]
    made: tuple[FaultKind, ...]
    starts: int
    seconds: float

    @property
    def right(self) -> bool:
        return not self.problems

    def document(self) -> dict[str, Any]:
        """The outcome as JSON values."""
        return asdict(self)


def play(scenario: Scenario, folder: Path, around: Surroundings) -> Outcome:
    """Play a scenario in an empty `folder`; blocks for as long as it takes. What is wrong with the pipeline
    is in the outcome, never raised; nothing that was started outlives the call."""
    begin_s = time.monotonic()
    with ExitStack() as stack:
        player = _Player(scenario, folder, around, stack)
        problems = list(player.play())
    return Outcome(
        scenario, tuple(problems), tuple(player.made), player.starts, round(time.monotonic() - begin_s, 1)
    )


class _Player:
    def __init__(self, scenario: Scenario, folder: Path, around: Surroundings, stack: ExitStack) -> None:
        self._scenario = scenario
        self._around = around
        self._work = workload(scenario)
        self._disk = folder / "disk"
        self._places = stack.enter_context(Places(scenario, self._work, self._disk, around.kafka))
        self._engine = stack.enter_context(ReplicaProcess(_script(scenario)))
        self._to_engine = stack.enter_context(Link(self._engine.port))
        environment = {**os.environ, "FOREBAY_HOME": str(folder / "home")}
        self._shim: Shim | None = None
        if any(fault.kind in SHIMMED for fault in scenario.faults):
            self._shim = Shim(folder / "shim", self._disk)
            stack.callback(self._shim.close)
            environment |= self._shim.environment
        if "kafka" in (scenario.source, scenario.sink) and around.connectors_from is not None:
            install_jar(KAFKA, folder / "home" / "connectors", around.connectors_from)
        self._pipeline = self._disk / "pipeline.yaml"
        command = [*around.command, "run", str(self._pipeline), "--engine", self._to_engine.url]
        self._run = stack.enter_context(PipelineRun(command, folder / "logs", environment, folder))
        self._parallelism = scenario.parallelism
        self._state = STATE
        self._calls_before = 0
        self._calls = 0
        self._checkpoints: set[str] = set()
        self._moved_s = time.monotonic()
        self._moved: tuple[int, ...] = ()
        self._excuses = 0
        self._over = False
        self._looked_s = 0.0
        self._orphans: set[psutil.Process] = set()
        self.made: list[FaultKind] = []

    @property
    def starts(self) -> int:
        return self._run.starts

    def play(self) -> Iterator[str]:
        try:
            self._write_pipeline()
            self._start()
            for fault in self._scenario.faults:
                if not self._reached(fault):
                    break
                self._make(fault)
                self.made.append(fault.kind)
            while self._runs():
                time.sleep(POLL_S)
            if left := wait_gone(self._run.processes("all") | self._orphans, GONE_S):
                yield f"processes outlived the command: {[_words(process) for process in left]}"
        except ForebayError as error:
            yield f"{error}; the run said: {self._run.said()}"
            self._run.kill("all")
            return
        yield from check(
            self._work.expected,
            self._places.results(),
            self._places.letters(),
            lambda line: name_of(self._scenario, line),
        )

    def _start(self) -> None:
        self._moved_s = time.monotonic()
        self._run.start()

    def _reached(self, fault: Fault) -> bool:
        """Wait until it is time for a fault; False where the pipeline came to its end before."""
        count = self._requests if fault.of == "requests" else self._completed
        target = count() + fault.after
        while count() < target:
            if not self._runs():
                return False
            time.sleep(POLL_S)
        return True

    def _runs(self) -> bool:
        """Look at the run, and give the command again where a fault has ended it. False: it came to its end.
        Raises `PipelineFailed` where it ended without a reason, or stands still."""
        if self._over:
            return False
        status = self._run.status()
        if status == 0:
            return False
        if status is not None:
            if FINISHED in self._run.said():
                # A fault came between the end of the job and that of the command: nothing is left to do.
                return False
            if not self._excuses:
                raise PipelineFailed(
                    f"the command ended with status {status} though nothing had happened to it"
                )
            self._excuses -= 1
            self._orphans |= self._run.processes("all")
            self._start()
        endless = self._places.endless
        if endless and self._has_all():
            return self._stopped()
        # Without an end, checkpoints go on for ever.
        moved = (self._requests(), 0 if endless else self._completed(), self._places.committed())
        if moved != self._moved:
            self._moved, self._moved_s = moved, time.monotonic()
        elif time.monotonic() - self._moved_s > self._around.patience_s:
            if endless:
                return self._stopped()  # What is lost is seen when all is compared.
            raise PipelineFailed(
                f"nothing moved for {self._around.patience_s:.0f} s, after {moved[0]} requests"
            )
        return True

    def _stopped(self) -> bool:
        """False, once a pipeline without an end is stopped."""
        self._run.stop()
        self._over = True
        return False

    def _has_all(self) -> bool:
        """Look now and then, as a user would, whether all that was handed in has come out."""
        self._places.give(self._requests())
        if time.monotonic() - self._looked_s < LOOK_S:
            return False
        self._looked_s = time.monotonic()
        return self._places.complete()

    def _requests(self) -> int:
        with suppress(OSError):
            self._calls = sum(self._engine.report().calls.values())
        return self._calls_before + self._calls

    def _completed(self) -> int:
        """Checkpoints that were seen, of all starts."""
        # Flink removes an older one while we look: the next look sees the rest.
        with suppress(FileNotFoundError):
            for path in (self._disk / self._state).glob("**/chk-*/_metadata"):
                self._checkpoints.add(str(path))
        return len(self._checkpoints)

    def _make(self, fault: Fault) -> None:
        self._excuses = 1
        if fault.kind in RESTARTS:
            self._end(fault)
            if fault.parallelism is not None:
                self._parallelism = fault.parallelism
                self._write_pipeline()
            # A command may recover by itself, or be about to end.
            if fault.kind != "kill jvm":
                if self._run.status() == 0:
                    return
                self._excuses = 0
                self._start()
        else:
            with _lasting(self._beginning_and_end(fault)):
                time.sleep(fault.away_s)
        # However long it lasted: from now on something must move again.
        self._moved_s = time.monotonic()

    def _end(self, fault: Fault) -> None:
        match fault.kind:
            case "kill all":
                self._run.kill("all")
            case "kill command":
                self._orphans |= self._run.kill("command")
            case "kill jvm":
                self._run.kill("jvm")
            case "stop":
                self._run.stop()
            case "copy state":
                self._run.kill("all")
                self._move_state()

    def _beginning_and_end(self, fault: Fault) -> tuple[Callable[[], object], Callable[[], object]]:
        """What begins a fault that lasts, and what ends it."""
        engine, shim, feed = self._to_engine, self._shim, self._places.feed
        match fault.kind:
            case "pause all" | "pause command" | "pause jvm":
                part: Any = fault.kind.removeprefix("pause ")
                paused: set[psutil.Process] = set()
                return lambda: paused.update(self._run.pause(part)), lambda: go_on(paused)
            case "pause engine":
                assert self._engine.pid is not None
                process = psutil.Process(self._engine.pid)
                return process.suspend, process.resume
            case "kill engine":
                return self._kill_engine, self._engine.start
            case "cut engine":
                return engine.cut, engine.mend
            case "stall engine":
                return engine.stall, engine.mend
            case "cut feed" if feed is not None:
                return feed.cut, feed.mend
            case "stall feed" if feed is not None:
                return feed.stall, feed.mend
            case "kill broker" if self._around.kafka is not None:
                return self._around.kafka.kill, self._around.kafka.start
            case "pause broker" if self._around.kafka is not None:
                return self._around.kafka.pause, self._around.kafka.go_on
            case "full disk" if shim is not None:
                return lambda: shim.full(True), lambda: shim.full(False)
            case "slow disk" if shim is not None:
                return lambda: shim.slow(SLOW_MS), lambda: shim.slow(0)
            case "step clock" if shim is not None:
                return lambda: shim.step_clock(fault.step_s), lambda: None
        raise PipelineFailed(f"the scenario has the fault {fault.kind!r}, which it cannot have")

    def _kill_engine(self) -> None:
        self._calls_before = self._requests()
        self._calls = 0
        self._engine.kill()

    def _move_state(self) -> None:
        """As a plain copy to another machine does: the times are those of the copying, in any order."""
        old, number = self._disk / self._state, len(self.made)
        self._state = f"state-{number}"
        files = sorted(path for path in old.rglob("*") if path.is_file()) if old.exists() else []
        random.Random(f"copy:{self._scenario.seed}:{number}").shuffle(files)
        for path in files:
            target = self._disk / self._state / path.relative_to(old)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        shutil.rmtree(old, ignore_errors=True)
        self._write_pipeline()

    def _write_pipeline(self) -> None:
        # JSON is YAML.
        scenario = self._scenario
        document = {
            "name": "drill",
            "capacity": scenario.capacity,
            "deadline_s": 1800.0,
            "timeout_s": 20.0,
            "retry": {"base_s": 0.05, "max_backoff_s": 0.5},
            **self._work.document,
            **self._places.sinks(),
            "source": self._places.source,
            "parallelism": self._parallelism,
            "checkpoint": {
                "interval_s": scenario.checkpoint_s,
                "dir": f"{self._state}/drill/checkpoints",
            },
        }
        self._pipeline.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def _script(scenario: Scenario) -> ReplicaScript:
    parts = ((1 - scenario.slow, ANSWER_S), (scenario.slow, 20 * ANSWER_S))
    return ReplicaScript(delay=Mixture(parts, scenario.seed), slots=SLOTS)


@contextmanager
def _lasting(both: tuple[Callable[[], object], Callable[[], object]]) -> Iterator[None]:
    begin, end = both
    begin()
    try:
        yield
    finally:
        end()


def _words(process: psutil.Process) -> Sequence[str]:
    try:
        return process.cmdline()[:4]
    except psutil.Error:
        return [str(process.pid)]
