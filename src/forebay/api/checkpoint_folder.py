"""The folder of a program's checkpoints: who writes there, where the program resumes, what is deleted."""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path

from forebay.errors import SettingError
from forebay.files import try_lock
from forebay.flink.checkpoints import LOCK, jobs_in, newest_checkpoint

log = logging.getLogger("forebay")

_held: dict[Path, int] = {}
"""The folders that this process has locked: a lock is the process's, and lasts as long."""


def hold_folder(folder: Path) -> bool:
    """Make `folder`, and lock it for the rest of this process's life: two jobs would resume from the same
    checkpoint and write everything twice.

    A second call for the same folder does nothing, and returns False: a notebook makes an environment again.
    When the process ends, however it ends, the lock is gone. Raises `SettingError` where another process has
    it, and where the folder cannot be made or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = folder.resolve() / LOCK
        if place in _held:
            return False
        descriptor = try_lock(place)
        if descriptor is None:
            raise SettingError(
                f"checkpoints: {folder} is in use by another process{_holder(place)}: a second job would "
                f"resume from the same checkpoint and write all results twice. Wait until it has ended, or "
                f"name another directory"
            )
        _held[place] = descriptor
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        return True
    except OSError as error:
        raise SettingError(f"checkpoints: {folder} cannot be used: {error.strerror}") from None


def resumed_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint in `folder`, which is logged; None without one. Raises `SettingError` as
    `newest_checkpoint`."""
    found = newest_checkpoint(folder)
    if found is None:
        log.info("no checkpoint in %s: the job starts from the beginning", folder)
    else:
        log.info("the job resumes from checkpoint %s", found)
    return found


def delete_others(folder: Path, resumed: Path) -> None:
    """Delete what jobs before that of the checkpoint `resumed` have left in `folder`, which this process must
    hold: a checkpoint needs no file of another job, as Flink does not claim what it restores."""
    for job in jobs_in(folder):
        if job != resumed.parent:
            shutil.rmtree(job, ignore_errors=True)


def _holder(place: Path) -> str:
    with suppress(OSError, ValueError):
        return f" ({int(place.read_text(encoding='ascii')[:20])})"
    return ""
