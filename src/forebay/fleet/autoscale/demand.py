"""The demand of a whole stream from the reports of its subtasks, which are files in a folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from forebay.errors import SettingError
from forebay.files import read_bytes
from forebay.fleet.autoscale.base import Backlog, Tokens
from forebay.fleet.autoscale.learned import ClassMix, LearnedSpeed
from forebay.fleet.autoscale.loop import Demand
from forebay.fleet.autoscale.meter import DemandReport, StandingRecords

FRESH_S = 10.0
"""An older report is from a subtask that hangs or was killed: it is silent."""
GONE_S = 60.0
"""An even older report is from a subtask that has ended."""
MAX_BYTES = 1 << 20
SUFFIX = ".demand.json"
NEAR = 0.05
_REPORT: TypeAdapter[DemandReport] = TypeAdapter(DemandReport)

Reports = Mapping[str, DemandReport]


def encode_demand(report: DemandReport) -> bytes:
    return orjson.dumps(report)


def report_name(space: str, pid: int, mark: str) -> str:
    return f"{space}-{pid}-{mark}{SUFFIX}"


def process_of(name: str, space: str) -> int | None:
    """The process in a report's file name; None if its pid is of another space, as in another container."""
    of, pid, *_ = [*name.split("-"), ""]
    return int(pid) if of == space and pid.isascii() and pid.isdigit() else None


def within(reports: Reports, now_ms: int, age_s: float) -> dict[str, DemandReport]:
    return {name: one for name, one in reports.items() if abs(now_ms - one.at_ms) <= age_s * 1000}


def read_reports(folder: Path) -> dict[str, DemandReport]:
    found = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            found[path.name] = _REPORT.validate_json(read_bytes(path, MAX_BYTES, str(path)))
        except (SettingError, ValidationError):
            continue
    return found


class StreamDemand:
    """The `DemandSource` of a stream whose subtasks report, all on the wall clock of one machine.

    Arrivals are the growth of the reports' totals. A silent subtask counts with its last report until that is
    removed or `GONE_S` old. `speed` learns from finished work, given the number of `ready` replicas.

    `queued` returns the requests in front of the subtasks, as in a topic (None: unknown). They are due one
    SLO from now; `mix` divides them among classes. A request that moves from the queue to a subtask is
    reported by both: what has left is subtracted from arrivals within `GONE_S`, or until the next report.
    """

    def __init__(
        self,
        reports: Callable[[], Reports],
        wall_ms: Callable[[], int],
        *,
        mix: ClassMix,
        speed: LearnedSpeed | None = None,
        ready: Callable[[], int] = lambda: 0,
        queued: Callable[[], Tokens | None] = lambda: None,
    ) -> None:
        self._reports = reports
        self._wall_ms = wall_ms
        self._mix = mix
        self._speed = speed
        self._ready = ready
        self._queued = queued
        self._arrived: dict[str, Tokens] = {}
        self._of_classes: dict[str, dict[str, Tokens]] = {}
        self._done: dict[str, Tokens] = {}
        self._before_s: float | None = None
        self._before: tuple[bool, int] = (False, 0)
        self._queued_before: Tokens | None = None
        self._standing = StandingRecords()
        self._left: list[tuple[float, Tokens]] = []
        self._reported_ms: int | None = None

    def take(self, now_s: float) -> Demand:
        now_ms = self._wall_ms()
        every = within(self._reports(), now_ms, GONE_S)
        fresh = within(every, now_ms, FRESH_S)
        silent = len(every) - len(fresh)
        if fresh:
            self._reported_ms = max(one.at_ms for one in fresh.values())
        came = _growth(self._arrived, {name: one.arrived for name, one in every.items()})
        taken_in = self._grown_classes(every)
        self._mix.add(taken_in)
        done = _growth(self._done, {name: one.done for name, one in every.items()})
        backlog = [
            Backlog((part.due_ms - now_ms) / 1000, part.tokens)
            for one in every.values()
            for part in one.waiting
        ]
        running = sum(one.running for one in every.values())
        idle = bool(fresh) and not silent and not backlog and not running and not done.requests
        queued = self._queued()
        # The class of records in a topic is unknown until they are accepted.
        known = taken_in if queued is None else {}
        if queued is None:
            self._standing.not_counted()
        else:
            waits = self._standing.take_off(queued, now_s, idle=idle)
            if waits.requests > 0:
                parts = self._mix.split(waits)
                backlog += [Backlog(of.slo_s, part) for of, part in parts if part.requests > 0]
            if self._queued_before is not None:
                came += _change(self._queued_before, queued)
            self._queued_before = queued
        arrived = self._settle(came, now_s)
        if fresh and not silent:
            self._learn(now_s, done, full=any(one.full for one in fresh.values()))
        else:
            # Work finished meanwhile is reported late or never, and waiting work may not be sent.
            self._before_s = None
        kv = [one.kv_usage for one in fresh.values() if one.usable]
        return Demand(
            backlog=merged(backlog),
            arrived=tuple((of.name, part) for of, part in self._mix.split_as(arrived, known)),
            running=running,
            running_tokens=sum(one.running_tokens for one in every.values()),
            kv_usage=min(max(kv, default=0.0), 1.0),
            age_s=math.inf if self._reported_ms is None else max(now_ms - self._reported_ms, 0) / 1000,
            wall_s=now_ms / 1000,
            silent=silent,
        )

    def _grown_classes(self, reports: Reports) -> dict[str, Tokens]:
        grown = {}
        for name in {name for one in reports.values() for name in one.by_class}:
            before = self._of_classes.setdefault(name, {})
            totals = {report: one.by_class.get(name, Tokens()) for report, one in reports.items()}
            grown[name] = _growth(before, totals)
        return grown

    def _settle(self, came: Tokens, now_s: float) -> Tokens:
        arrived, left = _positive(came), []
        for at_s, gone in [*self._left, (now_s, _positive(came.times(-1)))]:
            rest = _positive(gone + arrived.times(-1))
            arrived = _positive(arrived + gone.times(-1))
            if rest != Tokens() and now_s - at_s < GONE_S:
                left.append((at_s, rest))
        self._left = left
        return arrived

    def _learn(self, now_s: float, done: Tokens, *, full: bool) -> None:
        ready = self._ready()
        if self._speed is not None and self._before_s is not None:
            was_full, was_ready = self._before
            busy = full and was_full and ready == was_ready
            self._speed.add(done, min(ready, was_ready) * (now_s - self._before_s), busy=busy)
        self._before_s, self._before = now_s, (full, ready)


def merged(backlog: Sequence[Backlog]) -> tuple[Backlog, ...]:
    """`backlog` by due time. Parts whose due times differ by less than `NEAR` of the time left are merged,
    and all late ones.
    """
    found: list[Backlog] = []
    for part in sorted(backlog, key=lambda part: part.due_in_s):
        first_s = found[-1].due_in_s if found else math.inf
        if first_s <= part.due_in_s <= max(first_s * (1 + NEAR), 0.0):
            found[-1] = Backlog(first_s, found[-1].tokens + part.tokens)
        else:
            found.append(part)
    return tuple(found)


def _growth(before: dict[str, Tokens], now: Mapping[str, Tokens]) -> Tokens:
    grown = Tokens()
    for name, total in now.items():
        grown += _positive(total + before.get(name, Tokens()).times(-1))
        before[name] = total
    for name in [name for name in before if name not in now]:
        if len(before) > 2 * len(now) + 100:
            del before[name]
    return grown


def _change(before: Tokens, now: Tokens) -> Tokens:
    """The growth of a queue; may be negative. Each request counts as the mean of those that wait."""
    of, more = now if now.requests > 0 else before, now.requests - before.requests
    if not more:
        return Tokens()
    return Tokens(more, of.prompt * more / of.requests, of.output * more / of.requests)


def _positive(tokens: Tokens) -> Tokens:
    return Tokens(max(tokens.requests, 0.0), max(tokens.prompt, 0.0), max(tokens.output, 0.0))
