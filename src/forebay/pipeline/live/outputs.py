"""Reads a run's committed results and dead letters as they appear, on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from forebay.clients.s3.client import StoreAway, StoreRefused
from forebay.clients.s3.location import Location, location_of
from forebay.connectors.files.changes import MOVED_HERE, WRITTEN, FolderChanges
from forebay.json_numbers import read_json
from forebay.pipeline.followed_lines import FollowedLines
from forebay.pipeline.spec import PipelineSpec
from forebay.untrusted_text import replace_controls

LOOK_S, REST_S = 0.5, 0.05
LOOK_SHARE = 0.02
MAX_LINE_BYTES = 1 << 16
NEWEST_BYTES = 4 << 20
ALL_BYTES = 64 << 20
NEWEST_FILES = 20
EXAMPLES = 3
MAX_CAUSES = 20
NEWS_CHARS = 200
END_S = 5.0


class NewestLines:
    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self.lines: deque[bytes] = deque()
        self.added = 0

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self._bytes += len(line)
        while self._bytes > self._most_bytes:
            self._bytes -= len(self.lines.popleft())
        # Last, so that a drawing for this number contains the line.
        self.added += 1


@dataclass(slots=True)
class CauseExamples:
    count: int = 0
    newest: deque[bytes] = field(default_factory=lambda: deque(maxlen=EXAMPLES))


class RunOutputs:
    """Committed results in folders of JSON lines. One thread calls `look`; others read.

    `keep_all`: read all files, for an application's view. `news` receives each result after the first look.
    """

    def __init__(
        self, spec: PipelineSpec, *, keep_all: bool = False, news: Callable[[bytes], None] | None = None
    ) -> None:
        places = {key: location_of(path) for key, path in spec.directories().items()}
        self._news = news
        self._first = True
        newest = None if keep_all else NEWEST_FILES
        self._results = _followed(places.get("sink.path"), newest)
        self._letters = _followed(places.get("dead_letters.path"), newest)
        read = (places.get("sink.path"), places.get("dead_letters.path"))
        self.folders = [place for place in read if isinstance(place, Path)]
        self.kept = {"results": self._results is not None, "letters": self._letters is not None}
        self.results = NewestLines(ALL_BYTES if keep_all else NEWEST_BYTES)
        self.letters = NewestLines(NEWEST_BYTES)
        self.causes: dict[str, CauseExamples] = {}
        self.trouble = ""

    def look(self) -> None:
        try:
            for line in _lines(self._results):
                self.results.add(line)
                if self._news is not None and not self._first:
                    self._news(line)
            for line in _lines(self._letters):
                self._count(line)
                self.letters.add(line)
            self._first = False
            self.trouble = ""
        except (OSError, StoreAway, StoreRefused) as error:
            self.trouble = f"the results cannot be read now: {error}"

    def _count(self, line: bytes) -> None:
        try:
            cause = str(read_json(line)["cause"])
        except (ValueError, TypeError, KeyError):
            return
        if cause not in self.causes and len(self.causes) >= MAX_CAUSES:
            cause = "other"
        found = self.causes.setdefault(cause, CauseExamples())
        found.count += 1
        found.newest.append(line)


def _followed(place: Location | None, newest: int | None) -> FollowedLines | None:
    return None if place is None else FollowedLines(place, newest, ALL_BYTES)


def _lines(followed: FollowedLines | None) -> Iterator[bytes]:
    for line in () if followed is None else followed.new():
        if len(line) <= MAX_LINE_BYTES:
            yield line


class OutputsReader:
    def __init__(self, outputs: RunOutputs) -> None:
        self._outputs = outputs
        self._changes = FolderChanges(outputs.folders, WRITTEN | MOVED_HERE)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outputs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._changes.stop()
        if self._thread.ident is not None:
            self._thread.join(END_S)
        if not self._thread.is_alive():
            self._changes.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            begin_s = time.monotonic()
            self._outputs.look()
            self._closed.wait(max(REST_S, (time.monotonic() - begin_s) / LOOK_SHARE))
            self._changes.wait(LOOK_S, poll_s=LOOK_S)
        self._outputs.look()


def one_line(text: str) -> str:
    line = " ".join(replace_controls(text).split())
    return line if len(line) <= NEWS_CHARS else line[: NEWS_CHARS - 1] + "…"
