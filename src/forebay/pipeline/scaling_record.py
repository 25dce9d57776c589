"""Files of a pipeline's scaling: its status, its decisions, and the learned rates."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from forebay.errors import SettingError
from forebay.files import MAX_STATE_BYTES, private_folder, read_bytes, read_stamp, write_atomic, write_stamp
from forebay.fleet.autoscale.base import Tokens
from forebay.fleet.autoscale.learned import KEEP_S, ScalingMemory
from forebay.fleet.autoscale.loop import ScalingStep
from forebay.pages.charts import Line, time_figure
from forebay.pages.picture import Picture
from forebay.processes import birth_s, is_same, pid_space
from forebay.settings import Settings

STATUS, COURSE, LISTING = "status.json", "course.jsonl", "replicas.json"
MAX_BYTES = 16 << 20


def scaling_folder(settings: Settings, name: str, state: str) -> Path:
    mark = hashlib.sha256(state.encode()).hexdigest()[:8]
    return settings.run / "scaling" / f"{name}-{mark}"


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    url: str
    state: str
    since_s: float
    cores: tuple[int, ...]
    in_flight: int
    log: str


class ScalingRecord:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = private_folder(folder)
        self._name = name
        self._born_s = birth_s(os.getpid()) or 0.0
        self._steps: dict[str, Any] = {}

    def begin(self, at_ms: int) -> None:
        self._append({"at_ms": at_ms, "begin": True}, before=b"\n")

    def step(self, step: ScalingStep, at_ms: int) -> None:
        self._steps = step_document(step, at_ms)
        self._append(self._steps)

    def status(self, replicas: Sequence[ReplicaStatus], at_ms: int) -> None:
        write_stamp(
            self._folder / STATUS,
            {
                "pipeline": self._name,
                "pid": os.getpid(),
                "born_s": self._born_s,
                "space": pid_space(),
                "at_ms": at_ms,
                "decision": self._steps,
                "replicas": [asdict(one) for one in replicas],
            },
        )

    def end(self) -> None:
        (self._folder / STATUS).unlink(missing_ok=True)

    def _append(self, line: dict[str, Any], *, before: bytes = b"") -> None:
        path = self._folder / COURSE
        if path.exists() and path.stat().st_size > MAX_BYTES:
            path.replace(path.with_suffix(".old.jsonl"))
        with path.open("ab") as file:
            file.write(before + orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def step_document(step: ScalingStep, at_ms: int) -> dict[str, Any]:
    signals, decision = step.signals, step.decision
    waits = sum((part.tokens for part in signals.backlog), Tokens())
    late = sum((part.tokens for part in signals.backlog if part.due_in_s <= 0), Tokens())
    arrived = sum((tokens for _, tokens in signals.arrived), Tokens())
    return {
        "at_ms": at_ms,
        "ready": signals.ready,
        "starting": len(signals.starting),
        "draining": signals.draining,
        "booted_s": list(signals.booted_s),
        "waiting": round(waits.requests),
        "backlog_tokens": round(waits.prompt + waits.output),
        "late": round(late.requests),
        "next_deadline_s": round(signals.backlog[0].due_in_s, 1) if signals.backlog else None,
        "arrived": round(arrived.requests, 1),
        "running": signals.running,
        "wanted": decision.wanted,
        "reason": decision.reason,
        "failure": step.failure,
    }


def running_statuses(settings: Settings) -> Iterator[dict[str, Any]]:
    for path in sorted((settings.run / "scaling").glob(f"*/{STATUS}")):
        found: dict[str, Any] = dict(read_stamp(path))
        pid, born_s = found.get("pid"), found.get("born_s")
        if found.get("space") != pid_space() or not (isinstance(pid, int) and isinstance(born_s, float)):
            continue
        if is_same(pid, born_s):
            yield {**found, "course": str(path.parent / COURSE)}


def read_course(path: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for line in file:
            try:
                found = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if found.get("begin"):
                lines.clear()
            else:
                lines.append(found)
    return lines


LEARNED = "learned.json"


class LearnedFile:
    def __init__(self, folder: Path, memory: ScalingMemory, now_s: float) -> None:
        self._path = folder / LEARNED
        self._memory = memory
        self._saved_s = now_s
        self._unwritten: bytes | None = None
        self.problems = self._recall()

    def save_if_due(self, now_s: float, at_ms: int) -> None:
        if now_s - self._saved_s >= KEEP_S:
            self._saved_s = now_s
            self.save(at_ms)

    def save(self, at_ms: int) -> None:
        """Replace the file if anything was learned. Raises `OSError`; the next call retries."""
        self._unwritten = self._memory.save(at_ms) or self._unwritten
        if self._unwritten is not None:
            write_atomic(self._path, self._unwritten)
            self._unwritten = None

    def _recall(self) -> list[str]:
        if not self._path.exists():
            return []
        try:
            found = self._memory.recall(read_bytes(self._path, MAX_STATE_BYTES, "it"))
        except SettingError as error:
            found = [str(error)]
        return [f"the learned scaling state in {self._path} is not used: {why}" for why in found]


def course_picture(course: Sequence[Mapping[str, Any]], title: str) -> Picture:
    begin_ms = course[0]["at_ms"] if course else 0
    at_s = [(line["at_ms"] - begin_ms) / 1000 for line in course]
    lasted_s = at_s[-1] if at_s else 0.0

    def values(name: str) -> list[tuple[float, float]]:
        return [(time_s, line[name]) for time_s, line in zip(at_s, course, strict=True)]

    steps_s = [max(later - earlier, 1e-3) for earlier, later in zip([0.0, *at_s], at_s, strict=False)]
    rates = [
        (time_s, count / step_s) for (time_s, count), step_s in zip(values("arrived"), steps_s, strict=True)
    ]
    records = [
        Line("records that wait", values("waiting"), "red"),
        Line("at replicas", values("running"), "blue"),
    ]
    replicas = [
        Line("wanted", values("wanted"), "ink", "dash", steps=True),
        Line("ready", values("ready"), "green", steps=True),
        Line("starting", values("starting"), "gold", steps=True),
        Line("draining", values("draining"), "faint", steps=True),
    ]
    return Picture(
        title,
        [
            time_figure("Records", records, lasted_s),
            time_figure("Arrivals per second", [Line("", rates, "soft", steps=True)], lasted_s),
            time_figure("Replicas", replicas, lasted_s),
        ],
        columns=1,
    )
