"""Environment and outcome of scenarios."""

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
    """Environment of scenarios. `command`: the words before `run`. `kafka`, `store`: a node and an object
    store, if needed. `connectors`: a folder of installed jars. `patience_s`: maximum time without
    progress."""

    command: tuple[str, ...] = (sys.executable, "-m", "forebay")
    kafka: LocalKafka | None = None
    store: ObjectStore | None = None
    connectors: Path | None = None
    patience_s: float = 120.0


@dataclass(frozen=True)
class Outcome:
    """`problems`: one sentence per mistake. `made`: faults made before the input was used up. `starts`:
    number of starts of the command."""

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
