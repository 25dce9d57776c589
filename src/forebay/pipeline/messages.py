"""Messages between an attempt at a pipeline's job and its supervisor: reports and commands, one per line."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import Field, TypeAdapter

from forebay.pipeline.snapshot import Snapshot

GO, DRAIN, CANCEL = b"go\n", b"drain\n", b"cancel\n"
"""Commands: submit the job, which waits for this once built; complete what it has read; end it."""


@dataclass(frozen=True, slots=True)
class AwaitsKafka:
    words: str
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

    `jvm`: process id and start time. `ends`: the topics' ends at the first start. `topics`: all ids that
    topics have had.
    """

    jvm: tuple[int, float]
    kafka: str | None = None
    ends: tuple[tuple[str, int, int], ...] = ()
    topics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rest_port: int | None = None
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class Signs:
    """Signs that a job is alive.

    `answers`: Flink's REST service answered; if not, the rest is its last answer. `looked_ms`: when the
    slowest subtask last checked requests in flight; constant if a thread hangs. `held_back_ms`: total
    backpressure time.
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
    """Another attempt would fail, too; `error` is its class."""

    error: str
    message: str
    kind: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class AttemptLost:
    """Another attempt may succeed."""

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
