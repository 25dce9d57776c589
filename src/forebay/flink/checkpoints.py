"""Checkpoints on disk: which are complete, the newest, and copies that Flink does not delete.

Their numbers show which is newer, because a restored job continues them; times do not.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from forebay.clients.s3.location import Location
from forebay.errors import SettingError

METADATA = "_metadata"
HEADER = struct.Struct(">IiQ")
MARK = 0x4960672D
NEWEST_VERSION = 6
JOB_DIRECTORY = re.compile(r"[0-9a-f]{32}")
LOCK = "lock"
END_MARK = "finished"
END_NOTE = "note"
NUMBERED = re.compile(r"chk-(\d+)")
DRAIN = re.compile(r"drain-\d+")
MAX_DRAINS = 32
LOOKS = 100
"""Each look that finds the newest checkpoint gone means that Flink has completed others."""


L_co = TypeVar("L_co", bound=Location, covariant=True)


@dataclass(frozen=True, slots=True)
class Checkpoint(Generic[L_co]):
    path: L_co
    number: int

    @property
    def name(self) -> str:
        return f"{job_of(self.path)}/{self.path.name}"


def drain_folder(number: int) -> str:
    return f"drain-{number}"


def is_drain(name: str) -> bool:
    return DRAIN.fullmatch(name) is not None


def job_of(checkpoint: Location) -> str:
    parent = checkpoint.parent
    return parent.parent.name if is_drain(parent.name) else parent.name


@dataclass(frozen=True, slots=True)
class Contents:
    files: int
    bytes: int


def newest_checkpoint(checkpoint_dir: Path) -> Path | None:
    """Return the complete checkpoint under `checkpoint_dir` with the highest number, if any.

    Raises `SettingError` if it cannot be read, or if one of another job with a lower number was written
    later.
    """
    for _ in range(LOOKS):
        jobs = [found for job in _folders(checkpoint_dir) if (found := newest_of_job(job))]
        newest = max(jobs, key=lambda checkpoint: checkpoint.number, default=None)
        if newest is None:
            return None
        with suppress(FileNotFoundError):
            later = max(jobs, key=lambda each: ((each.path / METADATA).stat().st_mtime_ns, each.number))
            if later.number < newest.number:
                raise SettingError(
                    f"{checkpoint_dir} holds checkpoints of jobs that do not follow one another: "
                    f"{newest.name} has the highest number, and {later.name} was written later; move "
                    f"away the folder of the one that must not be resumed"
                )
            check_readable(newest.path)
            return newest.path
    raise SettingError(f"the checkpoints in {checkpoint_dir} come and go too fast to read one")


def jobs_in(checkpoint_dir: Path) -> list[Path]:
    return [path for path in checkpoint_dir.glob("*") if JOB_DIRECTORY.fullmatch(path.name)]


def newest_of_job(job: Path) -> Checkpoint[Path] | None:
    return next(iter(checkpoints_of(job)), None)


def checkpoints_of(job: Path) -> list[Checkpoint[Path]]:
    """The complete checkpoints in a job's folder, newest first. Raises `SettingError` for unreadable ones."""
    seen = _candidates(job)
    for _ in range(LOOKS):
        found = [checkpoint for path in seen if (checkpoint := _complete(path))]
        # Some of those listed may have been replaced by newer ones: look again.
        before, seen = seen, _candidates(job)
        if len(found) == len(before) or seen == before:
            break
    return sorted(found, key=lambda checkpoint: checkpoint.number, reverse=True)


def _candidates(job: Path) -> list[Path]:
    folders = _folders(job)
    drains = [inner for folder in folders if is_drain(folder.name) for inner in _folders(folder)]
    return folders + drains


def _complete(path: Path) -> Checkpoint[Path] | None:
    numbered = NUMBERED.fullmatch(path.name)
    if (numbered or path.name.startswith("savepoint-")) and (path / METADATA).is_file():
        with suppress(FileNotFoundError):
            return Checkpoint(path, int(numbered[1]) if numbered else check_readable(path))
    return None


def check_readable(checkpoint: Path) -> int:
    """Return the number in a checkpoint's `_metadata`. Raises as `number_in`, and `FileNotFoundError`."""
    path = checkpoint / METADATA
    with path.open("rb") as file:
        return number_in(file.read(HEADER.size), path)


def number_in(head: bytes, path: object) -> int:
    """The number in a `_metadata` that begins with `head`.

    Raises `SettingError` if it is damaged, or of a newer Flink.
    """
    if len(head) < HEADER.size:
        raise SettingError(f"{path} is cut off: it has {len(head)} bytes")
    mark, version, number = HEADER.unpack(head)
    if mark != MARK:
        raise SettingError(f"{path} is not a Flink checkpoint: it begins with {head[:4].hex()}")
    if version > NEWEST_VERSION:
        raise SettingError(
            f"{path} was written by a newer Flink, in format {version}; this one reads up to {NEWEST_VERSION}"
        )
    return int(number)


def contents(checkpoint: Path) -> Contents:
    files = size = 0
    with suppress(FileNotFoundError):
        for entry in os.scandir(checkpoint):
            files += 1
            size += entry.stat().st_size
    return Contents(files, size)


def _folders(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir())
    return []


KEPT = "kept"
SHARED = "shared"
BACK = "savepoint-kept-"


class KeptCheckpoints:
    """Hard links of a job's checkpoints, to repeat results that are found lost after its end.

    None is kept if the file system has no hard links, or if checkpoints share files (incremental ones).
    """

    def __init__(self, job: Path) -> None:
        self._job = job
        self._folder = job / KEPT

    def keep(self) -> None:
        if any((self._job / SHARED).glob("*")):
            return
        for checkpoint in checkpoints_of(self._job):
            to = self._folder / checkpoint.path.name
            if not to.exists():
                # Flink may delete it meanwhile: then there is a newer one.
                with suppress(OSError):
                    _link(checkpoint.path, to)

    def drop_before(self, number: int) -> None:
        for checkpoint in self._up_to(number)[1:]:
            shutil.rmtree(checkpoint.path, ignore_errors=True)

    def bring_back(self, number: int) -> Checkpoint[Path] | None:
        for checkpoint in self._up_to(number)[:1]:
            path = self._job / f"{BACK}{checkpoint.number}"
            with suppress(OSError):
                checkpoint.path.rename(path)
                return Checkpoint(path, checkpoint.number)
        return None

    def _up_to(self, number: int) -> list[Checkpoint[Path]]:
        return [each for each in checkpoints_of(self._folder) if each.number <= number]


def _link(folder: Path, to: Path) -> None:
    making = to.with_name(f"{to.name}.new")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    for file in os.scandir(folder):
        os.link(file.path, making / file.name)
    making.rename(to)
