"""Lasting faults: how each begins and ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from benchmarks.drill.link import Link, Shim
from benchmarks.drill.scenario import Fault, FaultKind, Scenario, Standstill
from benchmarks.object_store import ObjectStore, StoreLink
from benchmarks.run_process import Part, RunProcess, go_on
from forebay.errors import PipelineFailed
from forebay.testing.kafka import LocalKafka
from forebay.testing.replica import ReplicaProcess, ReplicaScript
from forebay.testing.script import Mixture


class PipelineRun(RunProcess):
    """The document of `--json` of start N goes to `logs/report-N.json`."""

    @property
    def _report(self) -> Path:
        return self._logs / f"report-{self.starts}.json"

    def command(self) -> Sequence[str]:
        return (*self._command, "--json", str(self._report))

    def report(self) -> Mapping[str, Any] | None:
        """The document of the latest start's `--json`; None if it wrote none."""
        path = self._report
        found = orjson.loads(path.read_bytes()) if path.is_file() and path.stat().st_size else None
        return found if isinstance(found, dict) else None

    def texts(self) -> Iterator[str]:
        for path in sorted(self._logs.iterdir()):
            yield path.read_text(errors="replace")


class Machine(AbstractContextManager["Machine"]):
    """Runs `command` with its own pipeline file; `connectors`: a folder of installed jars."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        engine_url: str,
        connectors: Path | None,
        store: ObjectStore | None,
    ) -> None:
        self._stack = ExitStack()
        self._pipeline = folder / "pipeline.yaml"
        home = folder / "home"
        home.mkdir(parents=True, mode=0o700)
        if connectors is not None:
            (home / "connectors").symlink_to(connectors)
        variables = {**environment, "FOREBAY_HOME": str(home)}
        self.link: StoreLink | None = None
        if store is not None:
            self.link = StoreLink(store.port)
            self._stack.enter_context(self.link)
            variables |= {**store.variables, "AWS_ENDPOINT_URL": self.link.url}
        words = [*command, "run", str(self._pipeline), "--engine", engine_url]
        self.run = self._stack.enter_context(PipelineRun(words, folder / "logs", variables, folder))

    def write(self, document: Mapping[str, Any]) -> None:
        # JSON is YAML.
        self._pipeline.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


ANSWER_S = 0.04
SLOTS = 2


class Engine(AbstractContextManager["Engine"]):
    def __init__(self, scenario: Scenario) -> None:
        parts = ((1 - scenario.slow, ANSWER_S), (scenario.slow, 20 * ANSWER_S))
        self._stack = ExitStack()
        script = ReplicaScript(delay=Mixture(parts, scenario.seed), slots=SLOTS)
        self._replica = self._stack.enter_context(ReplicaProcess(script))
        self.link = Link(self._replica.port)
        self._stack.enter_context(self.link)
        self._before = 0
        self._calls = 0

    def requests(self) -> int:
        with suppress(OSError):
            self._calls = sum(self._replica.report().calls.values())
        return self._before + self._calls

    def kill(self) -> None:
        self._before, self._calls = self.requests(), 0
        self._replica.kill()

    def start(self) -> None:
        self._replica.start()

    def process(self) -> psutil.Process:
        assert self._replica.pid is not None
        return psutil.Process(self._replica.pid)

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


@dataclass(frozen=True)
class Surroundings:
    command: tuple[str, ...] = (sys.executable, "-m", "forebay")
    kafka: LocalKafka | None = None
    store: ObjectStore | None = None
    connectors: Path | None = None
    patience_s: float = 120.0


@dataclass(frozen=True)
class Outcome:
    """`problems`: one sentence per mistake."""

    scenario: Scenario
    problems: tuple[str, ...]
    made: tuple[FaultKind, ...]
    starts: int
    seconds: float

    @property
    def right(self) -> bool:
        return not self.problems

    def document(self) -> dict[str, Any]:
        return asdict(self)


SLOW_MS = 30
PAUSED: dict[FaultKind, Part] = {"pause all": "all", "pause command": "command", "pause jvm": "jvm"}
Step = Callable[[], object]


@dataclass(frozen=True)
class Scene:
    """The targets of faults in a scenario; None: it has no such target."""

    machine: Machine
    engine: Engine
    shim: Shim | None = None
    feed: Link | None = None
    kafka: LocalKafka | None = None


@contextmanager
def lasting(fault: Fault, scene: Scene) -> Iterator[None]:
    begin, end = _beginning_and_end(fault, scene)
    begin()
    try:
        yield
    finally:
        end()


def standing_still(still: Standstill, machine: Machine) -> tuple[Step, Step]:
    """Functions that pause and resume the run on a machine."""
    if still == "cut":
        assert machine.link is not None
        return machine.link.stall, machine.link.restore
    assert still != "dead"
    return _paused(still, machine)


def _paused(part: Part, machine: Machine) -> tuple[Step, Step]:
    paused: set[psutil.Process] = set()
    return lambda: paused.update(machine.run.suspend(part)), lambda: go_on(paused)


def _beginning_and_end(fault: Fault, scene: Scene) -> tuple[Step, Step]:
    engine, shim, feed, kafka, store = scene.engine, scene.shim, scene.feed, scene.kafka, scene.machine.link
    links: dict[str, Link | None] = {"engine": engine.link, "feed": feed, "store": store}
    verb, _, target = fault.kind.partition(" ")
    if (link := links.get(target)) is not None and verb in ("cut", "stall", "busy"):
        return getattr(link, verb), link.restore
    match fault.kind:
        case "pause all" | "pause command" | "pause jvm":
            return _paused(PAUSED[fault.kind], scene.machine)
        case "pause engine":
            process = engine.process()
            return process.suspend, process.resume
        case "kill engine":
            return engine.kill, engine.start
        case "kill broker" if kafka is not None:
            return kafka.kill, kafka.start
        case "pause broker" if kafka is not None:
            return kafka.pause, kafka.go_on
        case "full disk" if shim is not None:
            return lambda: shim.full(True), lambda: shim.full(False)
        case "slow disk" if shim is not None:
            return lambda: shim.slow(SLOW_MS), lambda: shim.slow(0)
        case "step clock" if shim is not None:
            return lambda: shim.step_clock(fault.step_s), lambda: None
    raise PipelineFailed(f"the scenario has the fault {fault.kind!r}, which it cannot have")
