"""Plays a scenario with real processes: runs its pipeline, makes its faults, resumes, compares the output."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil

from benchmarks.drill.check import Found, check, check_report, skipped_places
from benchmarks.drill.faults import Engine, Machine, Outcome, Scene, Surroundings, lasting, standing_still
from benchmarks.drill.link import Shim
from benchmarks.drill.places import Places, State
from benchmarks.drill.scenario import RESTARTS, SHIMMED, Fault, FaultKind, Scenario
from benchmarks.drill.workload import name_of, workload
from benchmarks.object_store import BUCKET
from benchmarks.run_process import GONE_S
from forebay.clients.s3.location import Location, S3Path
from forebay.errors import ForebayError, PipelineFailed
from forebay.processes import wait_gone

POLL_S = 0.03
LOOK_S = 1.0
"""Interval for reading all commits and an object store."""
FINISHED = "has finished: its results are in the sink"
"""Message of a command whose pipeline finished before; the sink shows whether it did."""
TAKEN_OVER = ("has taken over", "is running already", "did not answer")
"""Last words of a run that was taken over: it finds that by the lock, or by the record, or had not begun, or
gave up before."""


def play(scenario: Scenario, folder: Path, around: Surroundings) -> Outcome:
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
        self._folder = folder
        self._around = around
        self._stack = stack
        self._work = workload(scenario)
        disk = folder / "disk"
        out: Location = disk
        if scenario.state == "s3":
            out = S3Path(BUCKET, f"drill-{uuid.uuid4().hex[:8]}")
        self._places = stack.enter_context(Places(scenario, self._work, disk, out, around.kafka))
        self._state = State(out / ".forebay", scenario.seed)
        self._engine = stack.enter_context(Engine(scenario))
        self._shim: Shim | None = None
        if any(fault.kind in SHIMMED for fault in scenario.faults):
            self._shim = Shim(folder / "shim", disk)
            stack.callback(self._shim.close)
        self._machines: list[Machine] = []
        self._parallelism = scenario.parallelism
        self._on_gap: str | None = None
        self._moved_s = time.monotonic()
        self._moved: tuple[int, ...] = ()
        self._excuses = 0
        self._over = False
        self._looked_s = 0.0
        self._completed_s, self._seen = 0.0, 0
        self._before: tuple[int, int] | None = None
        self._orphans: set[psutil.Process] = set()
        self._problems: list[str] = []
        self.made: list[FaultKind] = []

    @property
    def starts(self) -> int:
        return sum(machine.run.starts for machine in self._machines)

    @property
    def _machine(self) -> Machine:
        return self._machines[-1]

    def play(self) -> Iterator[str]:
        self._new_machine()
        try:
            self._start()
            for fault in self._scenario.faults:
                if not self._reached(fault):
                    break
                if self._make(fault):
                    self.made.append(fault.kind)
            while self._runs():
                time.sleep(POLL_S)
            if left := wait_gone(self._machine.run.processes("all") | self._orphans, GONE_S):
                yield f"processes outlived the command: {[_words(process) for process in left]}"
        except ForebayError as error:
            yield f"{error}; its output: {self._machine.run.output()}"
            self._machine.run.kill("all")
            return
        self._check_report()
        yield from self._problems
        places, expected = self._places, self._work.expected
        assignments = places.assignments() if expected.assignments else ()
        found = Found(places.results(), places.letters(), assignments, self._skipped(), places.deleted)
        yield from check(expected, found, partial(name_of, self._scenario))

    def _new_machine(self) -> None:
        around = self._around
        machine = Machine(
            self._folder / f"machine-{len(self._machines) + 1}",
            around.command,
            {**os.environ, **(self._shim.environment if self._shim else {})},
            engine_url=self._engine.link.url,
            connectors=around.connectors,
            store=around.store if self._scenario.state == "s3" else None,
        )
        self._machines.append(self._stack.enter_context(machine))

    def _start(self, *, alone: bool = True) -> None:
        self._moved_s = time.monotonic()
        files = self._scenario.sink == "files"
        self._before = self._written() if alone and files and not self._orphans else None
        self._write_pipeline()
        self._machine.run.start()

    def _written(self) -> tuple[int, int]:
        return sum(1 for _ in self._places.results()), sum(1 for _ in self._places.letters())

    def _check_report(self) -> None:
        report = self._machine.run.report()
        if report is None:
            return
        results = letters = None
        if self._before is not None and report.get("state") == "FINISHED":
            results, letters = (
                now - before for now, before in zip(self._written(), self._before, strict=True)
            )
        self._problems += check_report(report, results, letters)

    def _skipped(self) -> frozenset[str]:
        if self._scenario.portions == 1:
            return frozenset()
        texts = (text for machine in self._machines for text in machine.run.texts())
        return self._places.names(skipped_places(texts))

    def _reached(self, fault: Fault) -> bool:
        if fault.of in {"last request", "last commit"}:
            return self._at_the_end(fault)
        count = self._engine.requests if fault.of == "requests" else self._completed
        target = count() + fault.after
        while count() < target:
            if not self._runs():
                return False
            if self._places.endless and self._places.more_to_come and self._has_answered():
                # There is no progress until a fault adds input.
                return True
            time.sleep(POLL_S)
        return True

    def _at_the_end(self, fault: Fault) -> bool:
        expected = self._work.expected

        def there() -> bool:
            if fault.of == "last request":
                return self._engine.requests() >= len(expected.results)
            return self._places.answered()

        near = (self._scenario.state, self._scenario.sink) == ("folder", "files")
        while not there() and self._runs():
            time.sleep(POLL_S if near else 10 * POLL_S)
        time.sleep(fault.away_s)
        return True

    def _runs(self) -> bool:
        if self._over:
            return False
        run = self._machine.run
        status = run.status()
        if status == 0:
            return False
        if status is not None:
            if FINISHED in run.output():
                # A fault struck between the end of the job and that of the command: nothing is left to do.
                return False
            self._go_on_after(status)
        endless = self._places.endless
        if endless and self._has_all():
            return self._stopped()
        # Without an end, checkpoints continue forever.
        committed = self._places.committed() if self._scenario.state == "folder" else 0
        moved = (self._engine.requests(), 0 if endless else self._completed(), committed)
        if moved != self._moved:
            self._moved, self._moved_s = moved, time.monotonic()
        elif time.monotonic() - self._moved_s > self._around.patience_s:
            words = f"nothing moved for {self._around.patience_s:.0f} s, after {moved[0]} requests"
            if endless:
                # The comparison will show what is lost.
                self._problems.append(f"{words}; its output: {run.output()}")
                return self._stopped()
            raise PipelineFailed(words)
        return True

    def _go_on_after(self, status: int) -> None:
        detail = self._machine.run.output()
        if not detail:
            raise PipelineFailed(f"the command ended with status {status} without a message")
        if self._on_gap is None and skipped_places([detail]):
            self._on_gap = "continue"
        elif not self._excuses:
            raise PipelineFailed(f"the command ended with status {status} without a fault")
        else:
            self._excuses -= 1
        self._orphans |= self._machine.run.processes("all")
        self._start()

    def _stopped(self) -> bool:
        self._machine.run.stop()
        self._over = True
        return False

    def _has_all(self) -> bool:
        self._places.give(self._engine.requests())
        return not self._places.more_to_come and self._has_answered()

    def _has_answered(self) -> bool:
        if time.monotonic() - self._looked_s < LOOK_S:
            return False
        self._looked_s = time.monotonic()
        return self._places.answered(len(self._skipped()))

    def _completed(self) -> int:
        if self._scenario.state == "folder" or time.monotonic() - self._completed_s > LOOK_S:
            self._seen = self._state.completed()
            self._completed_s = time.monotonic()
        return self._seen

    def _make(self, fault: Fault) -> bool:
        self._excuses = 1
        if fault.kind == "take over":
            if self._machine.run.status() is not None:
                return False
            self._take_over(fault)
        elif fault.kind == "delete records":
            self._delete_records(fault)
        elif fault.kind in RESTARTS:
            self._end(fault)
        else:
            scene = Scene(self._machine, self._engine, self._shim, self._places.feed, self._around.kafka)
            with lasting(fault, scene):
                time.sleep(fault.away_s)
        # However long it lasted: from now on there must be progress.
        self._moved_s = time.monotonic()
        return True

    def _end(self, fault: Fault) -> None:
        run = self._machine.run
        match fault.kind:
            case "kill all":
                run.kill("all")
            case "kill command":
                self._orphans |= run.kill("command")
            case "kill jvm":
                run.kill("jvm")
            case "stop":
                run.stop()
            case "copy state":
                run.kill("all")
                self._state.move()
        self._parallelism = fault.parallelism or self._parallelism
        if fault.kind == "kill jvm" and run.status() is None:
            # The command recovers by itself.
            self._write_pipeline()
            return
        if run.status() != 0 or fault.of in {"last request", "last commit"}:
            self._excuses = 0
            self._start()

    def _take_over(self, fault: Fault) -> None:
        first = self._machine
        holder = self._state.holder()
        begin, end = standing_still(fault.still, first)
        begin()
        try:
            self._state.hide_processes()
            self._new_machine()
            self._start(alone=False)
            second = self._machine.run
            self._wait(
                lambda: second.status() is not None or self._state.holder() != holder,
                "the second run has not taken over",
            )
            time.sleep(fault.away_s)
        finally:
            end()
        self._wait(lambda: first.run.status() is not None, "the run that was taken over continues")
        detail = first.run.output()
        ended_before = first.run.status() == 0 and FINISHED in second.output()
        if not ended_before and (first.run.status() == 0 or not any(words in detail for words in TAKEN_OVER)):
            self._problems.append(
                f"the run that was taken over ended with status {first.run.status()}; its output: {detail}"
            )
        self._orphans |= first.run.processes("all")

    def _delete_records(self, fault: Fault) -> None:
        if fault.still == "dead":
            self._machine.run.kill("all")
            self._places.give_and_delete()
            self._start()
            return
        begin, end = standing_still(fault.still, self._machine)
        begin()
        try:
            self._places.give_and_delete()
        finally:
            end()

    def _wait(self, there: Callable[[], bool], otherwise: str) -> None:
        until_s = time.monotonic() + self._around.patience_s
        while not there():
            if time.monotonic() > until_s:
                raise PipelineFailed(f"{otherwise} after {self._around.patience_s:.0f} s")
            time.sleep(10 * POLL_S)

    def _write_pipeline(self) -> None:
        scenario = self._scenario
        source = dict(self._places.source)
        if self._on_gap is not None:
            source["on_gap"] = self._on_gap
        self._machine.write(
            {
                "name": "drill",
                "capacity": scenario.capacity,
                "deadline_s": 1800.0,
                "timeout_s": 20.0,
                "retry": {"base_s": 0.05, "max_backoff_s": 0.5},
                **self._work.document,
                **self._places.sinks(),
                "source": source,
                "parallelism": self._parallelism,
                "checkpoint": {"interval_s": scenario.checkpoint_s, "dir": str(self._state.home)},
            }
        )


def _words(process: psutil.Process) -> Sequence[str]:
    try:
        return process.cmdline()[:4]
    except psutil.Error:
        return [str(process.pid)]
