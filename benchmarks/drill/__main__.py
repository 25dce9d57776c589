"""`python -m benchmarks.drill`: plays random scenarios for a given time or number."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, get_args

import orjson
from rich.console import Console

from benchmarks.drill.faults import Outcome, Surroundings
from benchmarks.drill.link import compiler
from benchmarks.drill.play import play
from benchmarks.drill.scenario import (
    Application,
    FaultKind,
    Range,
    Scenario,
    SinkKind,
    SourceKind,
    StateKind,
    draw,
    shrink,
)
from benchmarks.object_store import object_store
from benchmarks.places import kafka_to_start
from forebay.cli.output import STDOUT, check_json, errors_console, print_line, write_json
from forebay.connectors.jars import KAFKA, S3, Jar, install_jar
from forebay.errors import SettingError
from forebay.settings import Settings, load_settings
from forebay.testing.kafka import local_kafka


@dataclass
class Drill:
    outcomes: list[Outcome] = field(default_factory=list)
    smallest: list[Scenario] = field(default_factory=list)

    @property
    def made(self) -> int:
        return sum(len(outcome.made) for outcome in self.outcomes)

    def document(self, seconds: float) -> dict[str, Any]:
        wrong = [outcome for outcome in self.outcomes if not outcome.right]
        return {
            "passed": not wrong,
            "scenarios": len(self.outcomes),
            "faults": self.made,
            "by_kind": dict(
                Counter(kind for outcome in self.outcomes for kind in outcome.made).most_common()
            ),
            **{f"by_{name}": self._by(name) for name in ("application", "source", "sink", "state")},
            "starts": sum(outcome.starts for outcome in self.outcomes),
            "seconds": round(seconds, 1),
            "failed": [outcome.document() for outcome in wrong],
            "smallest": [orjson.loads(scenario.to_json()) for scenario in self.smallest],
        }

    def _by(self, name: str) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for outcome in self.outcomes:
            of = found.setdefault(
                str(getattr(outcome.scenario, name)), {"scenarios": 0, "faults": 0, "failed": 0}
            )
            of["scenarios"] += 1
            of["faults"] += len(outcome.made)
            of["failed"] += not outcome.right
        return found


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drill", description=__doc__)
    parser.add_argument("--seconds", type=float, help="start no scenario after this many seconds")
    parser.add_argument(
        "--faults", type=int, help="start none after this many faults; 20 if neither limit is given"
    )
    parser.add_argument("--seed", type=int, help="the first scenario's; a random one otherwise")
    parser.add_argument("--scenario", help="play this one alone: a file with its JSON, - for standard input")
    parser.add_argument(
        "--tries", type=int, default=12, help="how often a failing one is played to shrink it"
    )
    parser.add_argument("--patience", type=float, default=120.0, help="seconds without any move that fail it")
    parser.add_argument("--keep", type=Path, help="a folder for the files of those that failed")
    parser.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="write one JSON document at the end; - or nothing: standard output",
    )
    for name, kind in (
        ("application", Application),
        ("source", SourceKind),
        ("sink", SinkKind),
        ("state", StateKind),
    ):
        parser.add_argument(
            f"--{name}", action="append", choices=get_args(kind), help="only this; repeatable"
        )
    parser.add_argument("--kind", action="append", choices=get_args(FaultKind), help="only such faults")
    parser.add_argument("--without", action="append", choices=get_args(FaultKind), help="no such faults")
    return parser.parse_args(arguments)


def range_of(options: argparse.Namespace, *, kafka: bool, s3: bool) -> Range:
    everything = Range(kafka=kafka, shim=compiler() is not None, s3=s3)
    kinds = tuple(options.kind or everything.faults)
    return replace(
        everything,
        applications=tuple(options.application or everything.applications),
        sources=tuple(options.source or everything.sources),
        sinks=tuple(options.sink or everything.sinks),
        states=tuple(options.state or everything.states),
        faults=tuple(kind for kind in kinds if kind not in (options.without or ())),
    )


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    console = errors_console()
    begin_s = time.monotonic()
    drill = Drill()
    with ExitStack() as stack:
        work = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-drill-")))
        work.mkdir(parents=True, exist_ok=True)
        try:
            check_json(options.json)
            around = _surroundings(options, load_settings(), work, console, stack)
            session = _Session(drill, work, around, options.tries, console)
            if options.scenario is not None:
                session.one(_read_scenario(options.scenario))
            else:
                kafka, s3 = around.kafka is not None, around.store is not None
                session.many(options, range_of(options, kafka=kafka, s3=s3))
        except KeyboardInterrupt:
            print_line(console, "stopped")
        except SettingError as error:
            print_line(console, str(error), style="red")
            return 2
    document = drill.document(time.monotonic() - begin_s)
    write_json(options.json, document)
    print_line(
        console,
        f"{document['scenarios']} scenarios, {document['faults']} faults, {document['seconds']:.0f} s: "
        f"{len(document['failed'])} failed",
    )
    return 0 if document["passed"] else 1


def _surroundings(
    options: argparse.Namespace, settings: Settings, work: Path, console: Console, stack: ExitStack
) -> Surroundings:
    around = Surroundings(patience_s=options.patience)
    if compiler() is None:
        print_line(console, "without full disks, slow disks and set clocks: they need Linux and a C compiler")
    around = replace(around, connectors=settings.connectors)
    try:
        home = kafka_to_start(settings)
        _install(KAFKA, settings)
        around = replace(around, kafka=stack.enter_context(local_kafka(home, work / "kafka")))
    except SettingError as error:
        print_line(console, f"without Kafka: {error}")
    try:
        _install(S3, settings)
        store = stack.enter_context(object_store(work))
    except SettingError as error:
        print_line(console, f"without S3: {error}")
        return around
    # For this process, which reads the results; the runs have their own link.
    os.environ.update({**store.variables, "AWS_ENDPOINT_URL": store.direct_url})
    return replace(around, store=store)


def _install(jar: Jar, settings: Settings) -> None:
    install_jar(jar, settings.connectors, settings.connectors_from or str(settings.connectors))


def _read_scenario(path: str) -> Scenario:
    try:
        return Scenario.from_json(sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"--scenario {path} cannot be read: {error}") from None


class _Session:
    def __init__(self, drill: Drill, work: Path, around: Surroundings, tries: int, console: Console) -> None:
        self._drill = drill
        self._work = work
        self._around = around
        self._tries = tries
        self._console = console

    def many(self, options: argparse.Namespace, among: Range) -> None:
        begin_s = time.monotonic()
        most = 20 if options.faults is None and options.seconds is None else options.faults
        seed = random.randrange(1_000_000) if options.seed is None else options.seed
        while most is None or self._drill.made < most:
            if options.seconds is not None and time.monotonic() - begin_s >= options.seconds:
                break
            self.one(draw(seed, among))
            seed += 1

    def one(self, scenario: Scenario) -> None:
        name = (
            f"seed {scenario.seed}: {scenario.application} from {scenario.source} to {scenario.sink}, "
            f"state in {scenario.state}"
        )
        with self._console.status(f"{self._drill.made} faults so far; {name}"):
            outcome = self._played(scenario, f"seed-{scenario.seed}")
        self._drill.outcomes.append(outcome)
        print_line(
            self._console,
            f"{name}, {len(outcome.made)} of {len(scenario.faults)} faults, {outcome.starts} starts, "
            f"{outcome.seconds:.0f} s: {'right' if outcome.right else 'WRONG'}",
        )
        if not outcome.right:
            for problem in (*outcome.problems, scenario.to_json()):
                print_line(self._console, f"  {problem}")
            self._make_smaller(scenario)

    def _make_smaller(self, scenario: Scenario) -> None:
        numbers = count()

        def fails(candidate: Scenario) -> bool:
            return not self._played(candidate, f"seed-{scenario.seed}-{next(numbers)}").right

        if self._tries > 0:
            with self._console.status(f"making seed {scenario.seed} smaller, in at most {self._tries} tries"):
                smallest = shrink(scenario, fails, self._tries)
            self._drill.smallest.append(smallest)
            print_line(self._console, f"  the smallest that failed: {smallest.to_json()}")

    def _played(self, scenario: Scenario, name: str) -> Outcome:
        folder = self._work / name
        shutil.rmtree(folder, ignore_errors=True)
        outcome = play(scenario, folder, self._around)
        if outcome.right:
            shutil.rmtree(folder, ignore_errors=True)
        return outcome


if __name__ == "__main__":
    # Report what was found so far; leave nothing running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
