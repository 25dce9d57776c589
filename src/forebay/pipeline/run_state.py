"""The record of a pipeline's runs: `run.json` next to its checkpoints.

It determines what the next run resumes: the newest checkpoint of the last job, or else the one that this job
started from. It is written atomically (also under power loss) before a job is submitted, with each completed
checkpoint, and at the end.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from forebay.codec import FORMAT, check_format
from forebay.errors import ForebayError, SettingError

FILE = "run.json"
MAX_BYTES = 16 << 20

JobId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]


class RunRecordBroken(SettingError):
    """`run.json` exists but cannot be used."""


class Completed(BaseModel):
    """A completed checkpoint of the last job: its number, wall-clock trigger time, and the files and bytes in
    its folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    triggered_ms: int = 0
    files: int = 0
    bytes: int = 0


class RunState(BaseModel):
    """A pipeline's last run.

    - `traits`: the settings that must not change when a job resumes.
    - `settings`: all of its settings, without secrets, to show what has changed.
    - `job`: the last job, None before the first. `restored`: the checkpoint that it started from, relative to
      the record's folder or absolute, None for the beginning. `restored_at_end`: the job that wrote that
      checkpoint had read all its input and only had to commit. `completed`: the last job's newest checkpoint.
    - `jvm`: process id and start time of an embedded cluster, `jvm_space` the `pid_space` of that id,
      `rest_port` its REST service's port. `cluster`: the address of the cluster, if the job ran on one.
    - `ends`: topics, partitions and their end offsets at the first start. `kafka`: the id of the source's
      Kafka cluster. `topics`: all ids of each topic, oldest first; they identify offsets, so a fresh start
      keeps them.
    - `writer`: the run that wrote the record to an object store. `lost`: results that the last job lost, and
      how to repeat them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    finished: bool = False
    traits: dict[str, Any] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
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
    """Return the record in `home`, None if it does not exist. Raises `RunRecordBroken` if it cannot be
    used.
    """
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
    """Decode the `content` of `path`. Raises `RunRecordBroken` if it cannot be used."""
    try:
        found = json.loads(content)
        if not isinstance(found, dict):
            raise ValueError("it is not a JSON object")
        check_format(found.get("format"), str(path))
        return RunState.model_validate(found)
    except ForebayError as error:
        raise RunRecordBroken(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise _broken(path, error) from None


def _broken(path: object, error: Exception) -> RunRecordBroken:
    return RunRecordBroken(
        f"{path} cannot be read ({_why(error)}); it records what was committed, so nothing is resumed "
        f"without it: restore it from a copy"
    )


def write_state(home: Path, state: RunState) -> None:
    """Replace the record durably. Raises `OSError`, and keeps the previous one."""
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


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error) or type(error).__name__
