"""One growing file of committed lines, made of the small files that Flink commits with each checkpoint.

Flink's file sink gives a hidden file its name when a checkpoint completes. The one owner of a folder, the
process that supervises the run, moves its lines to the end of a visible file, which only ever grows. Before
that, it puts the place where they belong into the hidden file's name: after a kill at any moment the same
bytes are written to the same place.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from forebay.files import try_lock

log = logging.getLogger(__name__)

COMMITTED = re.compile(r"(?P<writer>\.new-(?P<job>[^-]+)-.+)-(?P<count>\d+)\.jsonl")
MOVING = re.compile(r"\.at-(?P<file>\d+)-(?P<offset>\d+)(?P<name>\.new-(?P<job>[^-]+)-.+\.jsonl)")
MAX_BYTES = 256 << 20
"""Size from which lines go to a next file."""
LOCK = ".lock"
POLL_S = 0.05
FINISH_TRIES = 100
IDLE_SHARE = 20
"""A pass over a folder of many files takes at most a twentieth of the time."""
CHUNK_BYTES = 1 << 20


def prefix_of(job: str) -> str:
    """The prefix of the names that Flink gives to committed files."""
    return f".new-{job}"


@dataclass(frozen=True, slots=True)
class Move:
    """Lines of the hidden file `source` belong at `offset` of `target`."""

    source: Path
    target: Path
    offset: int


class GrowingFiles:
    """The files of a folder, `part-JOB-N.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def move(self) -> bool:
        """Move the lines of all files that Flink has committed; blocks. Returns False, having done nothing,
        while another process does that.

        Raises `OSError`; the next call continues.
        """
        if not self._waiting():
            return True
        lock = try_lock(self._folder / LOCK)
        if lock is None:
            return False
        try:
            self._write(self._begun())
            self._write(self._begin(self._committed()))
        finally:
            os.close(lock)
        return True

    def _waiting(self) -> bool:
        try:
            with os.scandir(self._folder) as found:
                return any(COMMITTED.fullmatch(each.name) or MOVING.fullmatch(each.name) for each in found)
        except FileNotFoundError:
            return False

    def _begun(self) -> list[Move]:
        found = ((path, MOVING.fullmatch(path.name)) for path in self._folder.iterdir())
        moves = [
            Move(path, self._file(name["job"], int(name["file"])), int(name["offset"]))
            for path, name in found
            if name is not None
        ]
        return sorted(moves, key=lambda move: (move.target, move.offset))

    def _committed(self) -> list[tuple[str, Path]]:
        """By the time of their last line, those of one writer in its order; with the job."""
        found = ((path, COMMITTED.fullmatch(path.name)) for path in self._folder.iterdir())
        files = sorted(
            (path.stat().st_mtime_ns, name["writer"], int(name["count"]), name["job"], path)
            for path, name in found
            if name is not None
        )
        # The clock may have been set back between two files of a writer.
        left: dict[str, list[tuple[int, str, Path]]] = {}
        for _, writer, count, job, path in files:
            left.setdefault(writer, []).append((count, job, path))
        for waiting in left.values():
            waiting.sort(reverse=True)
        return [left[writer].pop()[1:] for _, writer, *_ in files]

    def _begin(self, committed: Iterable[tuple[str, Path]]) -> Iterator[Move]:
        ends: dict[str, tuple[int, int]] = {}
        moves = []
        for job, path in committed:
            number, end = ends.get(job) or self._end(job)
            if end >= MAX_BYTES:
                number, end = number + 1, 0
            moving = path.with_name(f".at-{number}-{end}{path.name}")
            ends[job] = number, end + path.stat().st_size
            path.rename(moving)
            moves.append(Move(moving, self._file(job, number), end))
        yield from moves

    def _end(self, job: str) -> tuple[int, int]:
        number = 0
        while self._file(job, number + 1).exists():
            number += 1
        file = self._file(job, number)
        return number, file.stat().st_size if file.exists() else 0

    def _file(self, job: str, number: int) -> Path:
        return self._folder / f"part-{job}-{number}.jsonl"

    def _write(self, moves: Iterable[Move]) -> None:
        moves = list(moves)
        if not moves:
            return
        # For a power failure: names must be on disk before lines are, and lines before names go.
        _sync(self._folder)
        for target in dict.fromkeys(move.target for move in moves):
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            with os.fdopen(descriptor, "wb") as file:
                for move in moves:
                    if move.target == target:
                        file.seek(move.offset)
                        with move.source.open("rb") as lines:
                            shutil.copyfileobj(lines, file, CHUNK_BYTES)
                            written_ns = os.fstat(lines.fileno()).st_mtime_ns
                file.flush()
                os.fsync(file.fileno())
                # Of the last line, as `Part.written_ns` promises, and not of the move.
                os.utime(file.fileno(), ns=(written_ns, written_ns))
        for move in moves:
            move.source.unlink()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class GrowingSinks:
    """Moves what is committed in `folders`: at once, then on a thread of its own, and when it is closed."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._files = [GrowingFiles(folder) for folder in folders]
        self._moving = threading.Lock()
        self._closed = threading.Event()
        self._failure = ""
        if self._files:
            self.move()
            threading.Thread(target=self._run, name="growing-files", daemon=True).start()

    def move(self) -> bool:
        """Move everything now. Returns False if another process does that in one of the folders."""
        with self._moving:
            failure, done = "", True
            for files in self._files:
                try:
                    done &= files.move()
                except OSError as error:
                    failure = str(error)
            if failure and failure != self._failure:
                log.warning("committed results are not visible yet, which is tried again: %s", failure)
            self._failure = failure
        return done

    def finish(self) -> str:
        """Move everything, with patience for other processes. Returns why that failed, or an empty text."""
        for _ in range(FINISH_TRIES):
            if self.move() and not self._failure:
                return ""
            time.sleep(POLL_S)
        return self._failure or f"another process holds {LOCK} in the folder of the results"

    def close(self) -> None:
        self._closed.set()
        self.move()

    def _run(self) -> None:
        took_s = 0.0
        while not self._closed.wait(max(POLL_S, IDLE_SHARE * took_s)):
            begun_s = time.monotonic()
            self.move()
            took_s = time.monotonic() - begun_s
