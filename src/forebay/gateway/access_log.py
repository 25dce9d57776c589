"""The access log: one line of JSON per request, without prompts and answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from logging.handlers import QueueListener, WatchedFileHandler
from queue import Full, Queue
from typing import Any

import orjson

from forebay.errors import SettingError

LOG = logging.getLogger("forebay.gateway")
MAX_WAITING = 10_000


class AccessLog:
    """Writes lines to the file at `path` on its own thread, so no request waits for the disk.

    Reopens a renamed or removed file (logrotate). Raises `SettingError` if it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.dropped = 0
        self._queue: Queue[logging.LogRecord] = Queue(MAX_WAITING)
        try:
            self._file = _LogFile(path, encoding="utf-8")
        except OSError as error:
            raise SettingError(
                f"access_log: {path} cannot be opened: {error.strerror}; give a file that can be written"
            ) from None
        self._listener = QueueListener(self._queue, self._file)
        self._listener.start()

    def write(self, line: Mapping[str, Any]) -> None:
        text = orjson.dumps(line).decode()
        record = logging.LogRecord("forebay.access", logging.INFO, "", 0, text, None, None)
        try:
            self._queue.put_nowait(record)
        except Full:
            self.dropped += 1

    @property
    def lost(self) -> int:
        return self.dropped + self._file.failed

    def close(self) -> None:
        self._listener.stop()
        self._file.close()


class _LogFile(WatchedFileHandler):
    failed = 0

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.failed:
            LOG.exception("access_log: %s cannot be written; lines are lost", self.baseFilename)
        self.failed += 1
