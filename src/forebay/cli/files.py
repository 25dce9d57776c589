"""Files that a command writes at its end, looked at before it starts its work."""

from __future__ import annotations

import os
from pathlib import Path

from forebay.errors import SettingError


def check_writable(option: str, path: Path) -> None:
    """Raise `SettingError` where `path` cannot be written as a file; writes nothing itself."""
    if path.is_dir():
        raise SettingError(f"{option}: expected a file, found the folder {path}")
    if not path.parent.is_dir():
        raise SettingError(f"{option}: there is no folder {path.parent} to write {path.name} to")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SettingError(f"{option}: {path} cannot be written: no permission")
