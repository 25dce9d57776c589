"""Folders that only their owner can read and write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from forebay.errors import SettingError


def private_folder(path: Path) -> Path:
    """Make `path` a folder of mode 0700, with missing parents, or see to it that it is one; returns `path`.

    Raises `SettingError` where it is a link, no folder, or belongs to somebody else: whoever made it could
    read what is put there, or have it written to another place.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
