"""Reports and commands between an attempt at a pipeline's job and its supervisor, one per line."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import Field, TypeAdapter

from forebay.clients.s3.location import Location
from forebay.errors import PipelineFailed
from forebay.pipeline.plan import Plan
from forebay.pipeline.snapshot import Snapshot
from forebay.pipeline.state_store import RunState

CANCEL_S = 60.0
GO, DRAIN, CANCEL = b"go\n", b"drain\n", b"cancel\n"


class JobLost(PipelineFailed):
    """Flink, or a part of it, is gone or broken. A new attempt may succeed."""


class Cancelled(BaseException):
    pass


@dataclass(slots=True)
class StopRequests:
    """Set by one thread and read by another. `drain`: complete and commit what was read, then end."""

    drain: bool = False
    cancel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    plan: Plan
    file_systems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpec(Preparation):
    """Run job `job_id` from `restore_from`, or from the beginning. `state` is the record of earlier runs.

    A checkpoint `chosen` by hand is used unchanged. All attempts of a run share `run_id`.
    """

    state: RunState
    job_id: str
    run_id: str = ""
    restore_from: Location | None = None
    chosen: bool = False
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class AwaitsKafka:
    text: str
    waited_s: float
    kind: Literal["awaits kafka"] = "awaits kafka"


@dataclass(frozen=True, slots=True)
class Checked:
    kind: Literal["checked"] = "checked"


@dataclass(frozen=True, slots=True)
class ResumesEarlier:
    checkpoint: str
    reason: str
    kind: Literal["resumes earlier"] = "resumes earlier"


@dataclass(frozen=True, slots=True)
class Skipped:
    gaps: tuple[str, ...]
    records: int
    kind: Literal["skipped"] = "skipped"


@dataclass(frozen=True, slots=True)
class NewTopics:
    ids: dict[str, str]
    kind: Literal["new topics"] = "new topics"


@dataclass(frozen=True, slots=True)
class Ready:
    """The job is built, and is submitted once this report is recorded.

    `jvm`: process id and start time. `kafka`: ids of clusters by key. `ends`: the topics' ends at the first
    start. `topics`: all ids, past ones too.
    """

    jvm: tuple[int, float]
    kafka: dict[str, str] = field(default_factory=dict)
    ends: tuple[tuple[str, int, int], ...] = ()
    topics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rest_port: int | None = None
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs that a job is alive.

    `answers`: Flink's REST service answered; if not, the rest is its last answer. `looked_ms`: when the
    slowest subtask last checked requests; constant if a thread hangs. `held_back_ms`: total backpressure
    time.
    """

    answers: bool = True
    task_managers: int = 1
    looked_ms: int = 0
    held_back_ms: int = 0
    checkpoint_ms: int = 0


@dataclass(frozen=True, slots=True)
class JobStatus:
    snapshot: Snapshot
    signs: Signs = field(default_factory=Signs)
    kind: Literal["look"] = "look"


@dataclass(frozen=True, slots=True)
class Finished:
    snapshot: Snapshot
    kind: Literal["finished"] = "finished"


@dataclass(frozen=True, slots=True)
class Failed:
    error: str
    message: str
    kind: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class AttemptLost:
    cause: str
    kind: Literal["lost"] = "lost"


Report = (
    AwaitsKafka
    | ResumesEarlier
    | Skipped
    | Checked
    | Ready
    | NewTopics
    | JobStatus
    | Finished
    | Failed
    | AttemptLost
)

_ANY: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="kind")])


def encode_report(report: Report) -> bytes:
    return orjson.dumps(report, option=orjson.OPT_APPEND_NEWLINE)


def decode_report(line: bytes) -> Report:
    """Raises `ValueError`."""
    return _ANY.validate_json(line)


OUT_OF_MEMORY_STATUS = 3


def end_of_jvm(status: int, log_dir: Path) -> str:
    if status == OUT_OF_MEMORY_STATUS:
        return "ran out of memory"
    if status == -signal.SIGABRT:
        return f"crashed: see {log_dir}/flink-crash-*.log"
    return end_of(status)


def end_of(status: int) -> str:
    if status == -signal.SIGKILL:
        return "was killed (by SIGKILL: by hand, or by the system for want of memory)"
    return f"was killed (by {signal.Signals(-status).name})" if status < 0 else f"ended with status {status}"
