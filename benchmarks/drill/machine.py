"""A simulated machine that runs the command, the engine that it calls, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil

from benchmarks.drill.link import Link
from benchmarks.drill.scenario import FaultKind, Scenario
from benchmarks.object_store import ObjectStore, StoreLink
from benchmarks.run_process import RunProcess
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
        """Output and reports of all starts."""
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
        """Write the pipeline file of the next start."""
        # JSON is YAML.
        self._pipeline.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


ANSWER_S = 0.04
SLOTS = 2


class Engine(AbstractContextManager["Engine"]):
    """A replica behind `link`, through which the pipeline reaches it."""

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
        """Number of requests that have reached it."""
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
