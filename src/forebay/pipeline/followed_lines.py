"""Reads the committed results of a run as they appear."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.clients.s3.location import Location
from forebay.connectors.files.sink import Part, committed_parts


class FollowedLines:
    """The committed lines of a folder, each once, as they appear.

    Of the first files, only the `newest` and their last `most_bytes` are read; None: all.
    """

    def __init__(self, path: Location, newest: int | None = None, most_bytes: int | None = None) -> None:
        self._path = path
        self._newest = newest
        self._most_bytes = most_bytes
        self._read: dict[str, int] | None = None

    def new(self) -> Iterator[bytes]:
        """Without newlines. Raises as `committed_parts`, and `OSError`."""
        parts = committed_parts(self._path)
        if self._read is None:
            self._read = self._old(parts)
        for part in parts:
            begin = self._read.get(part.name, 0)
            if part.size < begin:
                # A reader has removed or emptied the file.
                begin = 0
            if part.size == begin:
                continue
            for line in part.lines(begin):
                begin += len(line) + 1
                self._read[part.name] = begin
                yield line

    def _old(self, parts: list[Part]) -> dict[str, int]:
        left = sum(part.size for part in parts) if self._most_bytes is None else self._most_bytes
        old = {}
        for number, part in enumerate(reversed(parts)):
            kept = min(part.size, left) if self._newest is None or number < self._newest else 0
            left -= kept
            old[part.name] = part.next_line(part.size - kept)
        return old
