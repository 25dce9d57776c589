"""Folders that only their owner can read and write."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from forebay.errors import SettingError


def private_folder(path: Path) -> Path:
    """Make `path` and missing parents folders of mode 0700, or see to it that `path` is one; returns `path`.

    Raises `SettingError` where it is a link, no folder, or belongs to somebody else: whoever made it could
    read what is put there, or have it written to another place.
    """
    try:
        for missing in reversed([parent for parent in path.parents if not parent.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise SettingError(f"{path}: expected a folder, found a link or a file; remove it")
        if found.st_uid != os.getuid():
            raise SettingError(f"{path} belongs to user {found.st_uid}, not to you; choose another place")
        if stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise SettingError(f"{path} cannot be made a private folder: {error}") from None
    return path


RUNS_CODE = "can run code as you"


def check_nobody_else_writes(
    path: Path, risk: str = RUNS_CODE, *, by: int = stat.S_IWGRP | stat.S_IWOTH
) -> None:
    """Raise `SettingError` where others than its owner may write to the folder or file `path`, or its owner
    is neither who asks nor root.

    `risk`: what may come of what is stored there. `by`: the bits of its mode that let others write. One that
    is missing is fine.
    """
    with suppress(FileNotFoundError):
        found = path.stat()
        if found.st_uid not in {os.getuid(), 0}:
            raise SettingError(
                f"{path} belongs to user {found.st_uid}, and what is stored there {risk}: make "
                f"it yours (chown), if you trust what it holds"
            )
        if stat.S_IMODE(found.st_mode) & by:
            raise SettingError(
                f"others may write to {path}, and what is stored there {risk}: keep them out "
                f"(chmod go-w), if you trust what it holds"
            )
