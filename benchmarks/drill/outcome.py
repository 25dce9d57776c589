"""What scenarios run with, and what came of one."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.drill.scenario import FaultKind, Scenario
from benchmarks.object_store import ObjectStore
from forebay.testing.kafka import LocalKafka


@dataclass(frozen=True)
class Surroundings:
    """What scenarios run with. `command`: what is before `run` on the command line. `kafka`, `store`: a node
    and an object store, if one is needed. `connectors`: a folder of installed jars. `patience_s`: how long
    nothing may move in a run."""

    command: tuple[str, ...] = (sys.executable, "-m", "forebay")
    kafka: LocalKafka | None = None
    store: ObjectStore | None = None
    connectors: Path | None = None
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
