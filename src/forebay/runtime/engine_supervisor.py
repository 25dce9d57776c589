"""Keeps the engine of a run alive, where the run started it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from forebay.clock import Clock, SystemClock
from forebay.engine.launch import Replica
from forebay.errors import LaunchError, PipelineFailed

MAX_RESTARTS = 3
WITHIN_S = 600.0

Say = Callable[[str], None]


@runtime_checkable
class SupervisedEngine(Protocol):
    """Replicas that this process started and may start again; `forebay.engine.launch.Replicas` is one."""

    @property
    def replicas(self) -> Sequence[Replica]: ...

    def restart(self, index: int) -> None:
        """Bring one back at its URL; blocks until it is healthy. Raises `LaunchError`."""
        ...


class EngineSupervisor:
    """Brings dead replicas back. An engine at a URL is someone else's: nothing is done about it."""

    def __init__(self, engine: object, clock: Clock | None = None) -> None:
        self._owned = engine if isinstance(engine, SupervisedEngine) else None
        self._clock = clock or SystemClock()
        self._restarted_s: deque[float] = deque()

    def mend(self, say: Say = lambda _: None) -> None:
        """Start every replica that has died again, each told to `say` first; blocks until they are healthy.

        Raises `PipelineFailed` where one cannot be started, or where this was needed `MAX_RESTARTS` times
        within ten minutes: records would become dead letters for no fault of theirs.
        """
        if self._owned is None:
            return
        for index, replica in enumerate(self._owned.replicas):
            if replica.alive:
                continue
            now_s = self._clock.monotonic_s()
            while self._restarted_s and now_s - self._restarted_s[0] >= WITHIN_S:
                self._restarted_s.popleft()
            if len(self._restarted_s) == MAX_RESTARTS:
                raise PipelineFailed(
                    f"the local engine ended {MAX_RESTARTS + 1} times within {WITHIN_S / 60:.0f} minutes; "
                    f"its log is {replica.log}"
                )
            self._restarted_s.append(now_s)
            say(f"the local engine at {replica.url} ended and is started again; its log was {replica.log}")
            try:
                self._owned.restart(index)
            except LaunchError as error:
                raise PipelineFailed(f"the local engine ended and cannot be started again: {error}") from None
