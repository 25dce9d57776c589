"""What an attempt at a pipeline's job tells whoever supervises it, and how that crosses a pipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import orjson
from pydantic import Field, TypeAdapter

from forebay.runtime.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class AwaitsKafka:
    """Kafka is waited for: why, and for how long it has been."""

    words: str
    waited_s: float
    kind: Literal["awaits kafka"] = "awaits kafka"


@dataclass(frozen=True, slots=True)
class Checked:
    """Kafka is there, and has what the job needs; where it needs none, at once."""

    kind: Literal["checked"] = "checked"


@dataclass(frozen=True, slots=True)
class ResumesEarlier:
    """The job resumes from `checkpoint`, an earlier one than was asked for, and why."""

    checkpoint: str
    reason: str
    kind: Literal["resumes earlier"] = "resumes earlier"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Records that Kafka no longer has are skipped: each gap in words, and how many records there were at
    most."""

    gaps: tuple[str, ...]
    records: int
    kind: Literal["skipped"] = "skipped"


@dataclass(frozen=True, slots=True)
class NewTopics:
    """Topics that the running job has found, with their ids."""

    ids: dict[str, str]
    kind: Literal["new topics"] = "new topics"


@dataclass(frozen=True, slots=True)
class Ready:
    """The job is built, and submitted once this has been taken note of: the process of its JVM and its birth,
    the id of the Kafka cluster that is read, where its topics ended at the first start, the ids that they
    have had, and the port of an embedded Flink's REST service."""

    jvm: tuple[int, float]
    kafka: str | None = None
    ends: tuple[tuple[str, int, int], ...] = ()
    topics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rest_port: int | None = None
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class Signs:
    """What tells whether a job lives.

    `answers`: Flink's REST service did; the rest is as it last said. `task_managers`: how many there are.
    `looked_ms`: when the operator's thread last looked after what is in flight, in the slowest subtask, on a
    clock of the machine's: the same from look to look where a thread stands still. `held_back_ms`: for how
    long the operator has been held back by what is behind it, added up. `checkpoint_ms`: when the newest
    completed checkpoint was triggered, by the wall clock.
    """

    answers: bool = True
    task_managers: int = 1
    looked_ms: int = 0
    held_back_ms: int = 0
    checkpoint_ms: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """The job at one moment."""

    snapshot: Snapshot
    signs: Signs = field(default_factory=Signs)
    kind: Literal["look"] = "look"


@dataclass(frozen=True, slots=True)
class Finished:
    """The job came to its end."""

    snapshot: Snapshot
    kind: Literal["finished"] = "finished"


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt ended with an error that another one would end with as well; `error` is its class."""

    error: str
    message: str
    kind: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class Lost:
    """What ran the job is gone or has broken: another attempt may succeed."""

    cause: str
    kind: Literal["lost"] = "lost"


Report = (
    AwaitsKafka | ResumesEarlier | Skipped | Checked | Ready | NewTopics | Look | Finished | Failed | Lost
)

_ANY: TypeAdapter[Report] = TypeAdapter(Annotated[Report, Field(discriminator="kind")])


def encode_report(report: Report) -> bytes:
    """One line, with its end."""
    return orjson.dumps(report, option=orjson.OPT_APPEND_NEWLINE)


def decode_report(line: bytes) -> Report:
    """What `encode_report` made the line of. Raises `ValueError` for any other."""
    return _ANY.validate_json(line)
