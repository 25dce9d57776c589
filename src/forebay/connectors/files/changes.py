"""Waits for new or changed files in local folders without polling (inotify(7))."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

WRITTEN, MOVED_HERE, CREATED = 0x8, 0x80, 0x100
"""A written file was closed, renamed into the folder, or created."""
CHUNK_BYTES = 1 << 16


class FolderChanges:
    """For one thread, except `stop`. A folder may be created later."""

    def __init__(self, folders: Iterable[Path], kinds: int = MOVED_HERE | CREATED) -> None:
        self._folders = [os.fsencode(folder) for folder in folders]
        self._kinds = kinds
        self._numbers: list[int] = []
        self._libc = ctypes.CDLL(None)
        self._fd = -1
        with suppress(AttributeError):
            # Only Linux has it.
            self._fd = int(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        self._stopped, self._stop = os.pipe()
        # select.select fails for descriptors from 1024 on.
        self._poll = select.poll()
        for descriptor in (self._fd, self._stopped):
            if descriptor >= 0:
                self._poll.register(descriptor, select.POLLIN)

    def wait(self, timeout_s: float, *, poll_s: float) -> bool:
        """Block until there may be a new or changed file, or `stop` was called.

        False after `timeout_s`, or after `poll_s` if a folder cannot be watched.
        """
        # Each time: a folder may have been created, or replaced.
        before, self._numbers = self._numbers, [self._watch(folder) for folder in self._folders]
        if not set(self._numbers) <= {*before, -1}:
            return True
        ready = self._poll.poll(1000 * (poll_s if -1 in self._numbers else timeout_s))
        if self._fd not in {descriptor for descriptor, _ in ready}:
            return False
        os.read(self._fd, CHUNK_BYTES)
        return True

    def stop(self) -> None:
        """From any thread."""
        os.write(self._stop, b"\0")

    def close(self) -> None:
        for descriptor in (self._fd, self._stopped, self._stop):
            if descriptor >= 0:
                os.close(descriptor)

    def _watch(self, folder: bytes) -> int:
        if self._fd < 0:
            return -1
        return int(self._libc.inotify_add_watch(self._fd, folder, self._kinds))
