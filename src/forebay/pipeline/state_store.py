"""Storage of a pipeline's state: checkpoints, the record of its runs and the lock. The local implementation
is here.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from forebay.clients.s3.location import Location
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
from forebay.pipeline.run_state import RunState, read_state, write_state


class Kept(Protocol):
    """Checkpoints that are kept after Flink deletes them, see `KeptCheckpoints`."""

    def keep(self) -> None: ...

    def drop_before(self, number: int) -> None: ...

    def bring_back(self, number: int) -> Checkpoint[Location] | None: ...


class StateStore(Protocol):
    """The state of one pipeline. Methods block; `job` is a job id, `checkpoint` a checkpoint's folder.

    Methods raise `OSError`, or `StoreAway` and `StoreRefused`, if the location cannot
    be read or written now; writes raise `PipelineFailed` if another run has taken over.
    """

    @property
    def home(self) -> Location: ...

    @property
    def remote(self) -> bool:
        """Whether each call is a request over the network, which takes time and costs money."""
        ...

    def lock(self, pipeline: str) -> AbstractContextManager[None]:
        """Allow one run of a pipeline at a time: two would restore the same state.

        Raises `SettingError` for a second run, and if other users may write to the state.
        """
        ...

    def check_held(self) -> None:
        """Raise `PipelineFailed` if another run took the lock. Returns immediately."""
        ...

    def report_renewals(self, report: Callable[[float], None]) -> None:
        """Call `report` with `held_until_s`, now and after each renewal, from another thread. Never called if
        the lock needs no renewal.
        """
        ...

    def held_until_s(self) -> float:
        """The `uptime_s` until which no other run can take the lock."""
        ...

    def trouble(self) -> str:
        """Why the location cannot be used now; empty if no problem is known. Returns immediately."""
        ...

    def read(self) -> RunState | None:
        """Return the record of the runs, or None without one. Raises `RunRecordBroken`."""
        ...

    def write(self, state: RunState, *, patient: bool = True) -> None:
        """Replace the record durably. `patient`: retry an unavailable location for as long as a start may
        take.
        """
        ...

    def has_finished(self, job: str) -> bool:
        """Whether the job has marked its end, see `forebay.flink.end_mark`. Without a checkpoint, a marked
        job has finished: Flink deleted its checkpoints.
        """
        ...

    def end_notes(self, job: str) -> Sequence[bytes]:
        """The job's notes at its end, see `forebay.flink.kept_counts`."""
        ...

    def fence(self, job: str | None, after: int) -> None:
        """Keep `job`, which may run on an unreachable machine, from completing checkpoints and committing.

        Its newest checkpoint has number `after` or higher. None fences each job that has left anything. Does
        nothing if the last run released the lock.
        """
        ...

    def jobs(self) -> Sequence[str]: ...

    def checkpoints(self, job: str) -> Sequence[Checkpoint[Location]]:
        """The complete checkpoints of a job, newest first."""
        ...

    def contents(self, checkpoint: Location) -> Contents: ...

    def kept(self, job: str) -> Kept: ...

    def delete(self, job: str, *, at_once: bool = True) -> None:
        """Delete everything of a job; unless `at_once`, leave what cannot be deleted now."""
        ...


RISK = "decides what a job continues with"


class LocalStore:
    """A folder on this machine. The lock is the kernel's, and ends with its holder."""

    remote = False

    def __init__(self, home: Path) -> None:
        self.home = home

    @contextmanager
    def lock(self, pipeline: str) -> Iterator[None]:
        check_nobody_else_writes(self.home, RISK)
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
        """Also raises `SettingError` if another user may have put one there."""
        check_nobody_else_writes(self.home / job, RISK)
        found = checkpoints_of(self.home / job)
        for checkpoint in found:
            check_nobody_else_writes(checkpoint.path, RISK)
        return found

    def contents(self, checkpoint: Location) -> Contents:
        return contents(Path(str(checkpoint)))

    def kept(self, job: str) -> KeptCheckpoints:
        return KeptCheckpoints(self.home / job)

    def delete(self, job: str, *, at_once: bool = True) -> None:
        shutil.rmtree(self.home / job, ignore_errors=not at_once)


def newest_of(store: StateStore, job: str) -> Checkpoint[Location] | None:
    return next(iter(store.checkpoints(job)), None)


def number_of(checkpoint: Location) -> int:
    """Return the number in a checkpoint's `_metadata`. Raises as `check_readable`, and if an object store
    cannot be read.
    """
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
    """Return the store at `home`, without a request."""
    if isinstance(home, Path):
        return LocalStore(home)
    from forebay.pipeline.s3_state_store import S3Store

    return S3Store(home)
