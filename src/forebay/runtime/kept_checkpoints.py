"""Checkpoints that outlive their job's end: what is found lost only then has to be made again from one."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from forebay.flink.checkpoints import Checkpoint, checkpoints_of

FOLDER = "kept"
SHARED = "shared"
"""Where Flink puts what several checkpoints of a job have in common."""
BACK = "savepoint-kept-"
"""How a checkpoint is called that was brought back: as one that Flink does not know and will not delete."""


class KeptCheckpoints:
    """Hard links of the checkpoints in the folder of one `job`, in a folder of their own below it.

    Flink deletes a job's checkpoints as newer ones follow, and all of them when it finishes. None is kept
    where the file system has no hard links, or where checkpoints share files (incremental ones).
    """

    def __init__(self, job: Path) -> None:
        self._job = job
        self._folder = job / FOLDER

    def keep(self) -> None:
        """Link what is there now and is not kept yet."""
        if any((self._job / SHARED).glob("*")):
            return
        for checkpoint in checkpoints_of(self._job):
            to = self._folder / checkpoint.path.name
            if not to.exists():
                # Flink may delete it meanwhile: then a newer one is there.
                with suppress(OSError):
                    _link(checkpoint.path, to)

    def drop_before(self, number: int) -> None:
        """Forget those older than the newest that is not newer than `number`."""
        for checkpoint in self._up_to(number)[1:]:
            shutil.rmtree(checkpoint.path, ignore_errors=True)

    def bring_back(self, number: int) -> Checkpoint | None:
        """Move the newest that is not newer than `number` among the job's own; None where none is kept."""
        for checkpoint in self._up_to(number)[:1]:
            path = self._job / f"{BACK}{checkpoint.number}"
            with suppress(OSError):
                checkpoint.path.rename(path)
                return Checkpoint(path, checkpoint.number)
        return None

    def _up_to(self, number: int) -> list[Checkpoint]:
        return [each for each in checkpoints_of(self._folder) if each.number <= number]


def _link(folder: Path, to: Path) -> None:
    """Link all files of `folder`, under the name `to` once all are."""
    making = to.with_name(f"{to.name}.new")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    for file in os.scandir(folder):
        os.link(file.path, making / file.name)
    making.rename(to)
