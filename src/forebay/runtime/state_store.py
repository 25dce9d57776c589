"""Where a pipeline's state is: checkpoints, the record of its runs and the lock, in a folder of this machine.

`StateStore` is the seam: whatever resumes, cleans up or supervises asks it, and does not know where it is.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from forebay.errors import SettingError
from forebay.files import check_nobody_else_writes, try_lock
from forebay.flink.checkpoints import (
    END_MARK,
    END_NOTE,
    LOCK,
    METADATA,
    Checkpoint,
    Contents,
    KeptCheckpoints,
    check_readable,
    checkpoints_of,
    contents,
    jobs_in,
)
from forebay.runtime.run_state import RunState, read_state, write_state
from forebay.s3.location import Location


class Kept(Protocol):
    """Checkpoints that outlive what Flink deletes, see `KeptCheckpoints`."""

    def keep(self) -> None: ...

    def drop_before(self, number: int) -> None: ...

    def bring_back(self, number: int) -> Checkpoint[Location] | None: ...


class StateStore(Protocol):
    """The state of one pipeline. Methods block; a `job` is the id of one, a `checkpoint` the folder of one.

    They raise `OSError`, or `StoreAway` and `StoreRefused` of `forebay.s3.client`, where the place cannot be
    read or written now, and those that write `PipelineFailed` where another run has taken over.
    """

    @property
    def home(self) -> Location:
        """The place of it all."""
        ...

    @property
    def remote(self) -> bool:
        """Whether each look is a request to somebody else, that takes time and costs."""
        ...

    def lock(self, pipeline: str) -> AbstractContextManager[None]:
        """Only one run of a pipeline at a time: two would restore the same state. Raises `SettingError` for a
        second, and where others may write to the state."""
        ...

    def check_held(self) -> None:
        """Raise `PipelineFailed` where the lock was taken by another run. Returns at once."""
        ...

    def report_renewals(self, report: Callable[[float], None]) -> None:
        """Call `report` with `held_until_s`, now and after each renewal, from another thread. Never called
        for a lock that needs no renewal."""
        ...

    def held_until_s(self) -> float:
        """Until when no other run can take the lock, by the clock `uptime_s`."""
        ...

    def trouble(self) -> str:
        """Why the place cannot be used now, in words; empty where nothing is known against it. Returns at
        once."""
        ...

    def read(self) -> RunState | None:
        """The record of the runs; None where there is none. Raises `RunRecordBroken`."""
        ...

    def write(self, state: RunState, *, patient: bool = True) -> None:
        """Replace the record; when this returns, it will be read after any crash. `patient`: wait for a place
        that cannot be written now, as long as a start may take."""
        ...

    def has_finished(self, job: str) -> bool:
        """Whether the job has marked its end, see `forebay.flink.end_mark`. If it has no checkpoint either,
        it has finished: Flink has deleted them."""
        ...

    def end_notes(self, job: str) -> Sequence[bytes]:
        """What the job has noted at its end, see `forebay.flink.kept_counts`."""
        ...

    def fence(self, job: str | None, after: int) -> None:
        """Make sure that `job`, which may run where this machine cannot end it, completes no checkpoint or
        savepoint any more and so commits nothing. Its newest checkpoint has number `after` or a higher one.
        None: the same for each job that has left anything. Does nothing if the last run released the lock."""
        ...

    def jobs(self) -> Sequence[str]:
        """The jobs that have left anything."""
        ...

    def checkpoints(self, job: str) -> Sequence[Checkpoint[Location]]:
        """The complete checkpoints of a job, the newest first."""
        ...

    def contents(self, checkpoint: Location) -> Contents:
        """What lies in the folder of a checkpoint."""
        ...

    def kept(self, job: str) -> Kept:
        """What is kept of a job's checkpoints beyond its end."""
        ...

    def delete(self, job: str, *, at_once: bool = True) -> None:
        """Delete all of a job; what cannot be deleted now is left where it need not be `at_once`."""
        ...


class LocalStore:
    """A folder of this machine, see `StateStore`. The lock is the kernel's, and ends with its holder."""

    remote = False

    def __init__(self, home: Path) -> None:
        self.home = home

    @contextmanager
    def lock(self, pipeline: str) -> Iterator[None]:
        check_nobody_else_writes(self.home)
        lock = try_lock(self.home / LOCK)
        if lock is None:
            raise SettingError(f"pipeline {pipeline!r} is running already, with its state in {self.home}")
        try:
            yield
        finally:
            os.close(lock)

    def check_held(self) -> None: ...

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
        return checkpoints_of(self.home / job)

    def contents(self, checkpoint: Location) -> Contents:
        return contents(Path(str(checkpoint)))

    def kept(self, job: str) -> KeptCheckpoints:
        return KeptCheckpoints(self.home / job)

    def delete(self, job: str, *, at_once: bool = True) -> None:
        shutil.rmtree(self.home / job, ignore_errors=not at_once)


def newest_of(store: StateStore, job: str) -> Checkpoint[Location] | None:
    """The newest complete checkpoint of a job; None without one."""
    return next(iter(store.checkpoints(job)), None)


def number_of(checkpoint: Location) -> int:
    """The number that a checkpoint's `_metadata` tells, wherever it lies; raises as `check_readable`, and
    where an object store cannot be read."""
    if isinstance(checkpoint, Path):
        return check_readable(checkpoint)
    from forebay.runtime.s3_state_store import number_in_store

    return number_in_store(checkpoint)


def metadata_of(checkpoint: Location) -> bytes:
    """A checkpoint's `_metadata`, wherever it lies. Raises as `number_of`."""
    if isinstance(checkpoint, Path):
        return (checkpoint / METADATA).read_bytes()
    from forebay.runtime.s3_state_store import metadata_in_store

    return metadata_in_store(checkpoint)


def open_store(home: Location) -> StateStore:
    """The store at `home`; nothing is asked of it yet."""
    if isinstance(home, Path):
        return LocalStore(home)
    from forebay.runtime.s3_state_store import S3Store

    return S3Store(home)
