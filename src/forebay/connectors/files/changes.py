"""Waits for new files in local folders without polling (inotify(7))."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MOVED_HERE, CREATED = 0x80, 0x100
CHUNK_BYTES = 1 << 16


class FolderChanges:
    """For one thread. A folder may be created later."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = [os.fsencode(folder) for folder in folders]
        self._numbers: list[int] = []
        self._libc = ctypes.CDLL(None)
        self._fd = -1
        with suppress(AttributeError):
            # Only Linux has it.
            self._fd = int(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))

    def wait(self, timeout_s: float, *, poll_s: float) -> bool:
        """Block until there may be a new file; False after `timeout_s`, or after `poll_s` if a folder
        cannot be watched."""
        # Each time: a folder may have been created, or replaced.
        before, self._numbers = self._numbers, [self._watch(folder) for folder in self._folders]
        if not set(self._numbers) <= {*before, -1}:
            return True
        watched = [] if self._fd < 0 else [self._fd]
        if not select.select(watched, [], [], poll_s if -1 in self._numbers else timeout_s)[0]:
            return False
        os.read(self._fd, CHUNK_BYTES)
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _watch(self, folder: bytes) -> int:
        if self._fd < 0:
            return -1
        return int(self._libc.inotify_add_watch(self._fd, folder, MOVED_HERE | CREATED))
