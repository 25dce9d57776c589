"""Runs scalable replicas as local processes: the `ReplicaOwner` of this machine."""

from __future__ import annotations

import http.client
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Literal, Protocol

from forebay.engine.launch import LocalReplica
from forebay.engine.launch.progress import tail
from forebay.engine.launch.replicas import HEALTH_TIMEOUT_S, START_TIMEOUT_S
from forebay.engine.launch.spec import LOOPBACK
from forebay.engine.load import parse_metrics
from forebay.errors import LaunchError, PipelineFailed
from forebay.fleet.autoscale.demand import GONE_S, Reports, within
from forebay.fleet.autoscale.loop import ReplicaCounts
from forebay.fleet.discovery import ScaledReplicaSet, write_listing

State = Literal["starting", "ready", "draining", "ending"]
WITHIN_S, MAX_FAILURES = 600.0, 4
"""Without a replica left, the run fails after this many failures in that time, or in a row. Otherwise records
would wait forever.
"""
PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0


class Processes(Protocol):
    def add(self, cores: tuple[int, ...], *, port_base: int = ...) -> LocalReplica: ...
    def ended(self, replica: LocalReplica) -> int | None: ...
    def end(self, replica: LocalReplica) -> None: ...
    def drop(self, replica: LocalReplica) -> None: ...


@dataclass(slots=True)
class ManagedReplica:
    replica: LocalReplica
    place: int
    state: State
    since_s: float
    left: int = 0


class Failures:
    def __init__(self) -> None:
        self._at_s: deque[float] = deque()
        self.in_a_row = 0
        self.last = ""

    def add(self, now_s: float, text: str) -> None:
        """Failures at the same moment have one cause, and count once."""
        if not self._at_s or self._at_s[-1] != now_s:
            self._at_s.append(now_s)
            self.in_a_row += 1
        self.last = text

    def recent(self, now_s: float) -> int:
        while self._at_s and now_s - self._at_s[0] >= WITHIN_S:
            self._at_s.popleft()
        return len(self._at_s)

    def pause(self, now_s: float) -> bool:
        recent = self.recent(now_s)
        if recent < 2:
            return False
        pause_s = min(PAUSE_S * 2.0 ** (recent - 2), LONGEST_PAUSE_S)
        return now_s - self._at_s[-1] < pause_s


class LocalReplicas:
    """Starts replicas in the places of `shares`, each with its cores, and drains them.

    A surplus replica is unlisted, and gets SIGTERM once `drained` confirms it. Until then it may be reused.
    Call `look` about once a second.
    """

    def __init__(
        self,
        processes: Processes,
        shares: Sequence[tuple[int, ...]],
        listing: Path,
        *,
        healthy: Callable[[LocalReplica], bool],
        drained: Callable[[LocalReplica, int], bool],
        port_base: int,
        start_timeout_s: float = START_TIMEOUT_S,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._processes = processes
        self._shares = tuple(shares)
        self._path = listing
        self._healthy = healthy
        self._drained = drained
        self._port_base = port_base
        self._start_timeout_s = start_timeout_s
        self._note = note
        self._kept: list[ManagedReplica] = []
        self._booted_s: list[float] = []
        self._wanted = 0
        self._listing = ScaledReplicaSet(())
        self._unwritten = False
        self._failures = Failures()
        self.failed = 0
        """Replicas that ended unexpectedly, or were not healthy in time."""
        write_listing(self._path, self._listing)

    @property
    def kept(self) -> tuple[ManagedReplica, ...]:
        return tuple(self._kept)

    @property
    def ready(self) -> int:
        return len(self._in("ready"))

    def counts(self, now_s: float) -> ReplicaCounts:
        booted, self._booted_s = tuple(self._booted_s), []
        return ReplicaCounts(
            ready=self.ready,
            starting=tuple(now_s - kept.since_s for kept in self._in("starting")),
            draining=len(self._in("draining")) + len(self._in("ending")),
            booted_s=booted,
        )

    def scale(self, wanted: int, now_s: float) -> None:
        self._wanted = min(wanted, len(self._shares))
        surplus = self.ready + len(self._in("starting")) - self._wanted
        if surplus < 0:
            self._grow(-surplus, now_s)
        else:
            # Starting replicas have no requests; of the ready ones, the newest has the least in its cache.
            for kept in [*reversed(self._in("starting")), *reversed(self._in("ready"))][:surplus]:
                self._let_go(kept, now_s)
        self._publish()

    def look(self, now_s: float) -> None:
        """Raises `PipelineFailed` if replicas fail repeatedly and none is left, although some are needed."""
        for kept in list(self._kept):
            status = self._processes.ended(kept.replica)
            if status is not None:
                self._over(kept, status, now_s)
            elif kept.state == "starting":
                self._look_at_start(kept, now_s)
            elif kept.state == "draining" and self._drained(kept.replica, kept.left):
                self._end(kept, now_s)
        self._publish()
        if self.ready:
            self._failures.in_a_row = 0
        if not self._wanted or self.ready or self._in("starting"):
            return
        if max(self._failures.recent(now_s), self._failures.in_a_row) >= MAX_FAILURES:
            raise PipelineFailed(f"local replicas failed {MAX_FAILURES} times: {self._failures.last}")

    def _in(self, state: State) -> list[ManagedReplica]:
        return [kept for kept in self._kept if kept.state == state]

    def _grow(self, missing: int, now_s: float) -> None:
        back = self._in("draining")[:missing]
        for kept in back:
            kept.state, kept.since_s = "ready", now_s
        free = sorted(set(range(len(self._shares))) - {kept.place for kept in self._kept})
        if self._failures.pause(now_s):
            return
        for place in free[: missing - len(back)]:
            try:
                replica = self._processes.add(self._shares[place], port_base=self._port_base)
            except LaunchError as error:
                self._failures.add(now_s, str(error))
                raise
            self._kept.append(ManagedReplica(replica, place, "starting", now_s))

    def _let_go(self, kept: ManagedReplica, now_s: float) -> None:
        if kept.state == "starting":
            self._end(kept, now_s)
            return
        kept.state, kept.since_s = "draining", now_s
        kept.left = self._listing.version + 1

    def _end(self, kept: ManagedReplica, now_s: float) -> None:
        kept.state, kept.since_s = "ending", now_s
        self._processes.end(kept.replica)

    def _look_at_start(self, kept: ManagedReplica, now_s: float) -> None:
        took_s = now_s - kept.since_s
        if self._healthy(kept.replica):
            self._booted_s.append(took_s)
            kept.state, kept.since_s = "ready", now_s
        elif took_s > self._start_timeout_s:
            self._fail(
                f"the replica at {kept.replica.url} was not healthy within {took_s:.0f} s", kept, now_s
            )
            self._end(kept, now_s)

    def _over(self, kept: ManagedReplica, status: int, now_s: float) -> None:
        if kept.state != "ending":
            when = "before it was healthy" if kept.state == "starting" else "while it served"
            self._fail(f"the replica at {kept.replica.url} ended with status {status} {when}", kept, now_s)
        self._kept.remove(kept)
        try:
            self._processes.drop(kept.replica)
        except OSError as error:
            # Readers of the list see that the process has ended: a full disk must not end a run.
            url = kept.replica.url
            self._note(
                f"the replica at {url} cannot be removed from the list of engines: {error}; free some space"
            )

    def _fail(self, text: str, kept: ManagedReplica, now_s: float) -> None:
        self.failed += 1
        end = tail(kept.replica.log)
        self._failures.add(now_s, f"{text}; the end of {kept.replica.log}:\n{end}" if end else text)
        self._note(f"{text}; its log is {kept.replica.log}")

    def _publish(self) -> None:
        before = self._listing
        urls = tuple(kept.replica.url for kept in self._in("ready"))
        if urls == tuple(before) and self._wanted == before.wanted:
            return
        listing = ScaledReplicaSet(urls, before.version + (urls != tuple(before)), self._wanted)
        try:
            write_listing(self._path, listing)
        except OSError as error:
            # The next look retries: a full disk must not end a run.
            if not self._unwritten:
                self._note(f"the list of replicas {self._path} cannot be written: {error}; free some space")
            self._unwritten = True
        else:
            self._listing, self._unwritten = listing, False


MAX_BYTES = 4 << 20


def is_idle(replica: LocalReplica) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, replica.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read(MAX_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    load, _ = parse_metrics(text, observed_s=0.0)
    return answer.status == HTTPStatus.OK and load.running == 0 and load.waiting == 0


def has_drained(reports: Reports, now_ms: int, url: str, left: int, idle: Callable[[], bool]) -> bool:
    """Whether `url` has no requests and will get none.

    Every live subtask must report list version `left`, the first without it, or later; and the replica must
    be idle. (Flink reports nothing while it restarts.)
    """
    counted = within(reports, now_ms, GONE_S).values()
    return all(one.listing >= left and not one.at_replicas.get(url, 0) for one in counted) and idle()
