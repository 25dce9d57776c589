"""Engines that a recovery run kills and restarts on the same port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

from forebay.engine.launch import Progress, Replicas, local_replicas
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


def killable_engine(
    kind: EngineKind, settings: Settings, progress: Progress
) -> AbstractContextManager[KillableEngine]:
    """An engine that runs during the block. Raises `LaunchError` or `SetupError`."""
    return _fake() if kind == "fake" else _vllm(settings, progress)


@contextmanager
def _fake() -> Iterator[KillableEngine]:
    with ReplicaProcess() as process:
        yield FakeEngine(process)


@contextmanager
def _vllm(settings: Settings, progress: Progress) -> Iterator[KillableEngine]:
    with local_replicas(1, settings=settings, progress=progress) as replicas:
        yield VllmEngine(replicas)
