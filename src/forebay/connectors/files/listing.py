"""The data files of a folder, and the entries that are not read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

from forebay.connectors.files.unpack import HIDDEN
from forebay.errors import SettingError

LOST_FOUND = "lost+found"
"""ext4 has it, readable by root only."""
BROKEN_LINK = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


def check_kind(path: Path) -> None:
    """Raise `SettingError` for a pipe or a device: opening it could wait without end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise SettingError(
            f"source path {path} is neither a file nor a directory; save its records in a file, which a "
            "resumed run can read again"
        )


def entries_of(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All files below `root`, except hidden ones; links to folders are not followed.

    Raises `OSError` if a folder cannot be read.
    """
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = os.scandir(root / folder)
        except FileNotFoundError:
            if not folder:
                raise
            # Removed after its parent was listed.
            continue
        with entries:
            for entry in entries:
                if entry.name.startswith(HIDDEN):
                    continue
                path = f"{folder}/{entry.name}" if folder else entry.name
                if not entry.is_dir(follow_symlinks=False):
                    yield path, entry
                elif entry.name != LOST_FOUND:
                    folders.append(path)


def is_data(entry: os.DirEntry[str]) -> bool:
    """False for a broken link. Raises `OSError` if that is unknown."""
    try:
        return entry.is_file()
    except OSError as error:
        if error.errno in BROKEN_LINK:
            return False
        raise


def data_files(path: Path) -> list[Path]:
    """Raises `SettingError` if a folder cannot be read."""
    try:
        if path.is_dir():
            return sorted(path / name for name, entry in entries_of(path) if is_data(entry))
        return [path] if path.is_file() else []
    except OSError as error:
        raise SettingError(scan_problem(path, error)) from None


def skipped_entries(path: Path) -> list[str]:
    """Entries and why they are not read. Raises as `data_files`."""
    try:
        entries = sorted(entries_of(path), key=itemgetter(0)) if path.is_dir() else []
        skipped = [(name, entry) for name, entry in entries if not is_data(entry)]
    except OSError as error:
        raise SettingError(scan_problem(path, error)) from None
    return [f"{path / name} is {_kind(entry)}, and is not read" for name, entry in skipped]


def folder_problem(root: Path) -> str:
    """Why a folder, or one in it, cannot be read now, or empty. Blocks."""
    try:
        for _, entry in entries_of(root):
            is_data(entry)
    except OSError as error:
        return scan_problem(root, error)
    return ""


def scan_problem(root: Path, error: OSError) -> str:
    path = Path(error.filename or root)
    if path == root:
        return f"source path {root!s:.200} cannot be read: {why(error)}"
    kind = "folder" if os.path.isdir(path) else "file"
    return (
        f"source {kind} {path} cannot be read: {why(error)}; make it readable, or leave it out: rename it to "
        "begin with `_`"
    )


def _kind(entry: os.DirEntry[str]) -> str:
    try:
        if entry.is_dir():
            return "a link to a directory"
        entry.stat()
    except OSError as error:
        return f"a link that cannot be followed ({why(error)})"
    return "neither a file nor a directory"


def name_in(root: Path, file: Path) -> str:
    """A file's name in positions."""
    base = os.path.basename(os.path.abspath(root))
    name = base if file == root else f"{base}/{file.relative_to(root).as_posix()}"
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
