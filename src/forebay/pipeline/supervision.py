"""Restart rules for stalled jobs and local replicas, and reasons for an engine that gets no requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from forebay.clock import Clock, SystemClock
from forebay.engine.launch import LocalReplica
from forebay.errors import LaunchError, PipelineFailed
from forebay.fleet.autoscale.meter import TopicBacklog
from forebay.flink.metrics import NOTHING_READ_MS
from forebay.pipeline.messages import JobStatus
from forebay.pipeline.snapshot import Scaling, Snapshot

NOT_RUNNING = frozenset(("CREATED", "INITIALIZING", "RESTARTING", "FAILING", "CANCELLING", "SUSPENDED"))

MUTE = "Flink's REST service did not answer"
NO_TASK_MANAGER = "Flink had no task manager"
TOO_FEW = "Flink lacked a task manager"
HALTED = "the job did not run"
STILL = "the operator did not check its requests"
UNANSWERED = "no result, failure or retry of the requests in flight"


SILENT_S = 180.0
LIMITS_S = {
    MUTE: 60.0,
    NO_TASK_MANAGER: 20.0,
    # Each task manager is a process, which is restarted.
    TOO_FEW: 60.0,
    # Flink pauses up to 30 s between restarts.
    HALTED: 120.0,
    # A Kafka that does not answer blocks a later task for two minutes.
    STILL: 300.0,
    UNANSWERED: 300.0,
}
"""How long each sign of trouble may last before a job is restarted. `UNANSWERED` may last a record's deadline
longer; it and `STILL` are ignored during backpressure.
"""


class JobStallDetector:
    """Detects stalls from which a job will not recover, in one attempt. It reads no clock.

    A slow engine or an idle source is not a stall, because operators check their calls several times a
    second. Only an `embedded` cluster is checked: others recover lost processes themselves.
    """

    def __init__(
        self, now_s: float, deadline_s: float, *, embedded: bool = True, task_managers: int = 1
    ) -> None:
        self._deadline_s = deadline_s
        self._embedded = embedded
        self._task_managers = task_managers
        self._received_s = now_s
        self._before: JobStatus | None = None
        self._since_s: dict[str, float] = {}

    def observe(self, now_s: float, look: JobStatus | None = None, *, served: bool = True) -> None:
        self._received_s = now_s
        if look is not None:
            signs = set(self._signs(look))
            if not served:
                signs.discard(UNANSWERED)
            self._since_s = {sign: self._since_s.get(sign, now_s) for sign in signs}
            self._before = look

    def excuse(self, now_s: float) -> None:
        """Reset all signs of trouble, because the attempt is suspended until its lease is renewed."""
        self._received_s = now_s
        self._since_s = {}

    def stalled(self, now_s: float) -> str | None:
        silent_s = now_s - self._received_s
        if silent_s >= SILENT_S:
            return f"Flink's process sent nothing for {silent_s:.0f} s"
        for sign, since_s in self._since_s.items():
            if now_s - since_s >= LIMITS_S[sign] + (self._deadline_s if sign == UNANSWERED else 0.0):
                return f"{sign} for {now_s - since_s:.0f} s"
        return None

    def _signs(self, look: JobStatus) -> Iterator[str]:
        now, signs = look.snapshot, look.signs
        if not self._embedded:
            return
        if not signs.answers:
            # All other signs are as old as the last answer.
            yield MUTE
            return
        if signs.task_managers < self._task_managers:
            yield NO_TASK_MANAGER if self._task_managers == 1 else TOO_FEW
        if now.state in NOT_RUNNING:
            yield HALTED
        before = self._before
        if before is None or now.state != "RUNNING" or not (_awaits(now) and _awaits(before.snapshot)):
            return
        if signs.held_back_ms != before.signs.held_back_ms:
            return
        if signs.looked_ms == before.signs.looked_ms:
            yield STILL
        if _moved(now) == _moved(before.snapshot):
            yield UNANSWERED


def _awaits(now: Snapshot) -> bool:
    return now.in_flight > 0 or 0 < now.oldest_read_ms < NOTHING_READ_MS


def _moved(now: Snapshot) -> tuple[int, ...]:
    return now.accepted, now.results, now.dead_letters, now.retries, now.restored_calls, now.restarts


LONGEST_PAUSE_S = 30.0


class Restarts:
    """The pause is 0, then 1 s, doubled up to `LONGEST_PAUSE_S`."""

    def __init__(self, most: int = 10, within_s: float = 600.0) -> None:
        self.most = most
        self.within_s = within_s
        self._made_s: deque[float] = deque()

    @property
    def recent(self) -> int:
        return len(self._made_s)

    def grant(self, now_s: float) -> float | None:
        while self._made_s and now_s - self._made_s[0] >= self.within_s:
            self._made_s.popleft()
        if len(self._made_s) >= self.most:
            return None
        pause_s = min(LONGEST_PAUSE_S, 2.0 ** (self.recent - 1)) if self._made_s else 0.0
        self._made_s.append(now_s)
        return pause_s


UNUSED_S, ASK_EVERY_S = 5.0, 10.0


def in_background(task: Callable[[], None]) -> None:
    threading.Thread(target=task, name="engine-question", daemon=True).start()


class OutageReason:
    """Finds out why no replica gets requests, which the job does not report.

    `ask` blocks and returns the reason; `start` runs it. Times are passed in.
    """

    def __init__(
        self, ask: Callable[[], str], start: Callable[[Callable[[], None]], None] = in_background
    ) -> None:
        self._ask = ask
        self._start = start
        self._due_s: float | None = None
        self._asks = False
        self._answer = [""]

    def observe(self, now_s: float, replicas: int | None) -> str:
        """The reason, once available; empty if one of the `replicas` gets requests."""
        if replicas != 0:
            self._due_s, self._answer = None, [""]
        elif self._due_s is None:
            self._due_s = now_s + UNUSED_S
        elif now_s >= self._due_s and not self._asks:
            self._due_s, self._asks = now_s + ASK_EVERY_S, True
            self._start(partial(self._ask_once, self._answer))
        return self._answer[0]

    def _ask_once(self, answer: list[str]) -> None:
        try:
            answer[0] = self._ask()
        finally:
            self._asks = False


MAX_RESTARTS = 3
WITHIN_S = 600.0

Note = Callable[[str], None]


@runtime_checkable
class SupervisedEngine(Protocol):
    @property
    def replicas(self) -> Sequence[LocalReplica]: ...

    def restart(self, index: int) -> None: ...


class EngineSupervisor:
    """Restarts dead replicas that this process started. Engines at URLs are not restarted."""

    def __init__(self, engine: object, clock: Clock | None = None) -> None:
        self._owned = engine if isinstance(engine, SupervisedEngine) else None
        self._clock = clock or SystemClock()
        self._restarts = Restarts(MAX_RESTARTS, WITHIN_S)
        self.failed = 0

    serves = True
    scaling: Scaling | None = None

    def observe(self, backlog: TopicBacklog | None, *, runs: bool = True) -> None:
        pass

    def check_replicas(self, note: Note = lambda _: None) -> None:
        """Block until restarted replicas are healthy.

        Raises `PipelineFailed` if one cannot be started, or after `MAX_RESTARTS` within ten minutes.
        """
        if self._owned is None:
            return
        for index, replica in enumerate(self._owned.replicas):
            if replica.alive:
                continue
            if self._restarts.grant(self._clock.monotonic_s()) is None:
                raise PipelineFailed(
                    f"the local engine ended {MAX_RESTARTS + 1} times within {WITHIN_S / 60:.0f} minutes; "
                    f"its log is {replica.log}"
                )
            self.failed += 1
            note(f"the local engine at {replica.url} ended and is being restarted; its log was {replica.log}")
            try:
                self._owned.restart(index)
            except LaunchError as error:
                raise PipelineFailed(f"the local engine ended and cannot be restarted: {error}") from None
