"""The record of a pipeline's runs: `run.json` beside its checkpoints.

It decides what the next run resumes: the newest checkpoint of the last job, or, where that has none, the
checkpoint that it was started from. It is written before a job is submitted, with each checkpoint that
completes, and when the pipeline has finished; whole or not at all, also where the machine loses power.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from forebay.errors import SettingError

FILE = "run.json"
VERSION = 2
MAX_BYTES = 16 << 20

JobId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]


class RunRecordBroken(SettingError):
    """`run.json` is there and cannot be used."""


class Completed(BaseModel):
    """A completed checkpoint of the last job: its number, when it was triggered (wall clock), and how many
    files and bytes its folder had."""

    model_config = ConfigDict(frozen=True)

    number: int
    triggered_ms: int = 0
    files: int = 0
    bytes: int = 0


class RunState(BaseModel):
    """What is known of a pipeline's last run. Fields of other versions are ignored.

    `traits` are the settings that checkpoints are bound to. `job` is the last job, None before the first.
    `restored` is the checkpoint that it was started from, below the folder of the record or absolute, None
    for the beginning. `restored_at_end`: the job that wrote that checkpoint had read all its input, so that
    the last one only had to commit. `completed` is the newest checkpoint of the last job that was seen.
    `jvm` is the process of an embedded cluster and its birth, `jvm_space` the `pid_space` of its number,
    `rest_port` the port of its REST service; `cluster` is the address of the cluster, if the job ran on
    one. `ends` are topics, partitions and the offsets at which they ended when the pipeline was first
    started. `kafka` is the id of the Kafka cluster that was read, `topics` the ids that each of its topics
    has had, oldest first: they name positions, and so outlive a start from the beginning. `writer` is the
    run that wrote the record to an object store. `lost` names the results that the last job lost, and how
    to make them again.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int = VERSION
    finished: bool = False
    traits: dict[str, Any] | None = None
    job: JobId | None = None
    restored: str | None = None
    restored_at_end: bool = False
    completed: Completed | None = None
    parallelism: int | None = None
    jvm: tuple[int, float] | None = None
    jvm_space: str = ""
    rest_port: int | None = None
    cluster: str | None = None
    ends: tuple[tuple[str, int, int], ...] | None = None
    kafka: str | None = None
    topics: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    lost: str | None = None
    writer: str | None = None


def read_state(home: Path) -> RunState | None:
    """The record in `home`; None where there is none. Raises `RunRecordBroken` where it cannot be used."""
    path = home / FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        return decode_state(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _broken(path, error) from None


def decode_state(content: bytes, path: object) -> RunState:
    """The record that is the `content` of `path`. Raises `RunRecordBroken` where it cannot be used."""
    try:
        found = json.loads(content)
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
        version = found.setdefault("version", 1)
        if not isinstance(version, int) or version > VERSION:
            raise RunRecordBroken(
                f"{path} was written by a newer Forebay, in version {version!r}; this one reads up to "
                f"{VERSION}: resume with that Forebay"
            )
        return RunState.model_validate(_from_first(found) if version == 1 else found)
    except (ValueError, RecursionError) as error:
        raise _broken(path, error) from None


def _broken(path: object, error: Exception) -> RunRecordBroken:
    return RunRecordBroken(
        f"{path} cannot be read ({_why(error)}); it says what was committed, so nothing is resumed "
        f"without it: bring it back from a copy"
    )


def write_state(home: Path, state: RunState) -> None:
    """Replace the record; when this returns, it is on the disk. Raises `OSError`; the one before stays."""
    path, written = home / FILE, home / f"{FILE}.new"
    try:
        with written.open("wb") as file:
            file.write(state.model_dump_json().encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, path)
    except OSError:
        with suppress(OSError):
            written.unlink()
        raise
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _from_first(found: Mapping[str, Any]) -> dict[str, Any]:
    """A record of the first version has no id, and of a job's checkpoints knows only that there was one."""
    completed = Completed(number=0) if found.get("checkpointed") else None
    return {**found, "id": None, "completed": completed, "restored": None}


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error) or type(error).__name__
