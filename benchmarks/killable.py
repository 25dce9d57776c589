"""Engines that can be killed, and a plan of what is killed when."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Literal, Protocol

from forebay.engine.launch import Progress, Replicas, local_replicas
from forebay.errors import SettingError
from forebay.settings import Settings
from forebay.testing.answers import echo
from forebay.testing.replica import ReplicaProcess

EngineKind = Literal["fake", "vllm"]
PROMPT = "Event "
"""Every prompt is this and the event's number."""


class KillableEngine(Protocol):
    @property
    def url(self) -> str: ...

    def kill(self) -> None:
        """SIGKILL; blocks until it is gone."""
        ...

    def bring_back(self) -> None:
        """Start it again on the same port; blocks until it answers."""
        ...

    def calls(self) -> Counter[str] | None:
        """Attempts by request id over all its lives, up to just before a kill; None if unknown."""
        ...

    def is_answer(self, number: int, answer: object) -> bool: ...


class FakeEngine:
    """A scripted replica: 95 % of the calls take 50 ms, 5 % take 2 s."""

    def __init__(self, process: ReplicaProcess) -> None:
        self._process = process
        self._calls: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return self._process.url

    def kill(self) -> None:
        self._calls.update(self._process.report().calls)
        self._process.kill()

    def bring_back(self) -> None:
        self._process.start()

    def calls(self) -> Counter[str] | None:
        return self._calls + Counter(self._process.report().calls)

    def is_answer(self, number: int, answer: object) -> bool:
        return answer == echo(f"{PROMPT}{number}")


class VllmEngine:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    @property
    def url(self) -> str:
        return self._replicas[0]

    def kill(self) -> None:
        self._replicas.kill(0)

    def bring_back(self) -> None:
        self._replicas.restart(0)

    def calls(self) -> Counter[str] | None:
        return None

    def is_answer(self, number: int, answer: object) -> bool:
        return isinstance(answer, str)


@contextmanager
def killable_engine(kind: EngineKind, settings: Settings, progress: Progress) -> Iterator[KillableEngine]:
    if kind == "fake":
        with ReplicaProcess() as process:
            yield FakeEngine(process)
    else:
        with local_replicas(1, settings=settings, progress=progress) as replicas:
            yield VllmEngine(replicas)


KillKind = Literal["job", "engine", "jvm", "flink", "command", "broker", "busy", "mute"]

TURNS: tuple[KillKind, ...] = ("job", "engine", "jvm", "command", "flink")
WITH_BROKER: tuple[KillKind, ...] = ("job", "engine", "jvm", "broker", "command", "flink")
"""The same between topics."""

OUTAGES: tuple[KillKind, ...] = ("busy", "mute")
RESTARTED: frozenset[KillKind] = frozenset(("job", "command"))
"""Kills after which the pipeline must be started again; after the others it continues by itself."""

MAX_RESULTS = 100
AFTER_S = (0.5, 4.0)
DOWN_S = (1.0, 5.0)
OUTAGE_S = 30.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: `after_s` seconds after `after_results` new results since the previous one.

    `down_s`: time until the engine or the broker is restarted. `parallelism`: for the restore; None:
    unchanged.
    """

    kind: KillKind
    after_results: int
    after_s: float
    down_s: float
    parallelism: int | None = None


def plan(
    count: int,
    seed: int,
    *,
    rescale_to: int | None = 2,
    broker: bool = False,
    only: KillKind | None = None,
    outages: int = 0,
) -> tuple[Kill, ...]:
    if count < 1:
        raise SettingError(f"kills must be at least 1, found {count}")
    draw = random.Random(seed)
    turns = (WITH_BROKER if broker else TURNS) if only is None else (only,)
    kills = [
        Kill(
            kind=kind,
            after_results=draw.randint(1, MAX_RESULTS),
            after_s=draw.uniform(*AFTER_S),
            down_s=draw.uniform(*DOWN_S),
        )
        for kind in islice(cycle(turns), count)
    ]
    restarts = [i for i, kill in enumerate(kills) if kill.kind == "job"]
    if rescale_to is not None and restarts and only is None:
        middle = min(restarts, key=lambda i: abs(2 * i + 1 - count))
        kills[middle] = replace(kills[middle], parallelism=rescale_to)
    for kind in islice(cycle(OUTAGES), outages):
        kills.append(Kill(kind, draw.randint(1, MAX_RESULTS), draw.uniform(*AFTER_S), OUTAGE_S))
    return tuple(kills)
