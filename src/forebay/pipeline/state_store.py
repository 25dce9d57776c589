"""Stores a pipeline's checkpoints, run record and lock; with the implementation for local folders."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from forebay.clients.s3.location import Location
from forebay.codec import FORMAT, check_format
from forebay.errors import ForebayError, PipelineFailed, SettingError
from forebay.files import check_nobody_else_writes, is_at, is_locked, try_lock
from forebay.flink.checkpoints import (
    END_MARK,
    END_NOTE,
    LOCK,
    METADATA,
    Checkpoint,
    Contents,
    check_readable,
    checkpoints_of,
    contents,
    jobs_in,
)


class StateStore(Protocol):
    """The state of one pipeline. Methods block; `job` is a job id, `checkpoint` a checkpoint's folder.

    They raise `OSError`, or `StoreAway` and `StoreRefused`, if the location is unavailable. Writes raise
    `PipelineFailed` if another run has taken over.
    """

    @property
    def home(self) -> Location: ...

    def lock(self, pipeline: str) -> AbstractContextManager[None]:
        """Raises `SettingError` for a second run, and if others may write to the state."""
        ...

    def running(self) -> bool:
        """Whether a run holds the lock. Blocks. Raises `PipelineFailed`, or as above for an object store."""
        ...

    def check_held(self) -> None:
        """Raise `PipelineFailed` if another run took the lock, or could take it. Does not block."""
        ...

    def report_renewals(self, report: Callable[[float], None]) -> None: ...

    def held_until_s(self) -> float:
        """The `uptime_s` until which no other run can take the lock."""
        ...

    def trouble(self) -> str:
        """Empty if the location works. Does not block."""
        ...

    def read(self) -> RunState | None:
        """None without one. Raises `RunRecordBroken`."""
        ...

    def write(self, state: RunState, *, patient: bool = True) -> None:
        """Write durably. `patient`: retry for as long as a start may take."""
        ...

    def has_finished(self, job: str) -> bool: ...

    def end_notes(self, job: str) -> Sequence[bytes]: ...

    def fence(self, job: str | None, after: int) -> None:
        """Keep `job`, which may run on an unreachable machine, from completing checkpoints and committing.

        Its newest checkpoint has number `after` or higher. None fences every job with files here. Does
        nothing if the last run released the lock.
        """
        ...

    def jobs(self) -> Sequence[str]: ...

    def checkpoints(self, job: str) -> Sequence[Checkpoint[Location]]: ...

    def contents(self, checkpoint: Location) -> Contents: ...

    def delete(self, job: str, *, at_once: bool = True) -> None: ...


RISK = "decides what a job continues with"
LOCK_TRIES, LOCK_PAUSE_S = 11, 0.1


class LocalStore:
    def __init__(self, home: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.home = home
        self._sleep = sleep
        self._lock: int | None = None

    @contextmanager
    def lock(self, pipeline: str) -> Iterator[None]:
        check_nobody_else_writes(self.home, RISK)
        lock = try_lock(self.home / LOCK)
        for _ in range(LOCK_TRIES - 1):
            if lock is not None:
                break
            # `running` holds it for a moment.
            self._sleep(LOCK_PAUSE_S)
            lock = try_lock(self.home / LOCK)
        if lock is None:
            raise SettingError(f"pipeline {pipeline!r} is running already, with its state in {self.home}")
        self._lock = lock
        try:
            yield
        finally:
            self._lock = None
            os.close(lock)

    def running(self) -> bool:
        try:
            return is_locked(self.home / LOCK)
        except OSError as error:
            raise PipelineFailed(f"{self.home / LOCK} cannot be read: {error.strerror}") from None

    def check_held(self) -> None:
        if self._lock is not None and not is_at(self.home / LOCK, self._lock):
            raise PipelineFailed(
                f"{self.home / LOCK} was removed or replaced during the run, perhaps with the folder of this "
                f"pipeline's state. The job is cancelled, because another run could write at the same time. "
                f"End any other run and restore the folder, or start over with --fresh, which writes all "
                f"results again"
            )

    def report_renewals(self, report: Callable[[float], None]) -> None: ...

    def held_until_s(self) -> float:
        return math.inf

    def trouble(self) -> str:
        return ""

    def read(self) -> RunState | None:
        return read_state(self.home)

    def write(self, state: RunState, *, patient: bool = True) -> None:
        write_state(self.home, state)

    def has_finished(self, job: str) -> bool:
        return (self.home / job / END_MARK).is_file()

    def end_notes(self, job: str) -> Sequence[bytes]:
        return [path.read_bytes() for path in (self.home / job).glob(f"{END_NOTE}-*")]

    def fence(self, job: str | None, after: int) -> None: ...

    def jobs(self) -> Sequence[str]:
        return [path.name for path in jobs_in(self.home)]

    def checkpoints(self, job: str) -> Sequence[Checkpoint[Path]]:
        """Raises `SettingError` if another user may have put one there."""
        check_nobody_else_writes(self.home / job, RISK)
        found = checkpoints_of(self.home / job)
        for checkpoint in found:
            check_nobody_else_writes(checkpoint.path, RISK)
        return found

    def contents(self, checkpoint: Location) -> Contents:
        return contents(Path(str(checkpoint)))

    def delete(self, job: str, *, at_once: bool = True) -> None:
        shutil.rmtree(self.home / job, ignore_errors=not at_once)


def newest_of(store: StateStore, job: str) -> Checkpoint[Location] | None:
    return next(iter(store.checkpoints(job)), None)


def number_of(checkpoint: Location) -> int:
    """Raises as `check_readable`."""
    if isinstance(checkpoint, Path):
        return check_readable(checkpoint)
    from forebay.pipeline.s3_state_store import number_in_store

    return number_in_store(checkpoint)


def metadata_of(checkpoint: Location) -> bytes:
    if isinstance(checkpoint, Path):
        return (checkpoint / METADATA).read_bytes()
    from forebay.pipeline.s3_state_store import metadata_in_store

    return metadata_in_store(checkpoint)


def open_store(home: Location) -> StateStore:
    if isinstance(home, Path):
        return LocalStore(home)
    from forebay.pipeline.s3_state_store import S3Store

    return S3Store(home)


FILE = "run.json"
MAX_BYTES = 16 << 20

JobId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]


class RunRecordBroken(SettingError):
    pass


class Completed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    triggered_ms: int = 0
    files: int = 0
    bytes: int = 0


class RunState(BaseModel):
    """A pipeline's last run, in `run.json` next to its checkpoints. It determines what the next run resumes.

    Written before a job is submitted, with each completed checkpoint, and at the end.

    - `traits`: settings that must not change when a job resumes; `settings`: all, without secrets.
    - `restored`: the checkpoint that the last `job` started from, None for the beginning.
      `restored_at_end`: its job only had to commit. `completed`: the last job's newest checkpoint.
    - `jvm`: process id and start time of an embedded cluster, `jvm_space` the `pid_space` of that id.
    - `kafka`: id of the source's cluster; `sink_kafka`: of those of sinks with transactions, by their keys.
    - `ends`: end offsets at the first start. `topics`: all ids of each topic, oldest first; a fresh start
      keeps them.
    - `folders`: local ones that its jobs wrote to. A restored job commits lines only there.
    - `writer`: the run that wrote the record to an object store. `lost`: results that the last job lost.
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
    sink_kafka: dict[str, str] = Field(default_factory=dict)
    topics: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    folders: tuple[str, ...] = ()
    lost: str | None = None
    writer: str | None = None


def read_state(home: Path) -> RunState | None:
    """Raises `RunRecordBroken`."""
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
    """Raises `RunRecordBroken`."""
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
    """Durably. Raises `OSError`, and keeps the previous one."""
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
