"""Files of JSON lines that hold each result exactly once.

Flink's file sink gives a hidden file its name when a checkpoint completes. If `grows`, the run's supervisor
appends its lines to a visible file. It first renames the hidden file to include their place there: after a
kill the same bytes go to the same place.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from forebay.clients.s3.client import S3Client
from forebay.clients.s3.location import Location, uri_of
from forebay.connectors.files.changes import FolderChanges
from forebay.errors import ResultsLost
from forebay.files import is_at, try_lock

if TYPE_CHECKING:
    from pyflink.datastream import DataStream

COMMITTED = re.compile(r"part-(.+)-(\d+)\.jsonl")
JOB_CHARS = 12


@dataclass(frozen=True, slots=True)
class JsonlFiles:
    """A directory of `part-*.jsonl` files; `job` becomes part of the names.

    A file appears when a checkpoint completes (without checkpoints: when a bounded job ends).
    """

    path: Location
    job: str = ""
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """`written_ns`: wall clock of its last line."""

    folder: Location
    name: str
    written_ns: int
    size: int

    def lines(self, begin: int = 0) -> Iterator[bytes]:
        """Complete lines that begin at byte `begin` or later, without newlines."""
        if not isinstance(self.folder, Path):
            at = 0
            for line in S3Client(self.folder.bucket).lines(f"{self.folder.key}/{self.name}"):
                if at >= begin:
                    yield line
                at += len(line) + 1
            return
        with (self.folder / self.name).open("rb") as file:
            file.seek(_next_line(file, begin))
            for line in file:
                if line.endswith(b"\n"):
                    yield line.rstrip(b"\n")

    def next_line(self, begin: int) -> int:
        """Start of the first line at byte `begin` or later. Reads files of an object store whole."""
        if not isinstance(self.folder, Path):
            return self.size if begin else 0
        with (self.folder / self.name).open("rb") as file:
            return _next_line(file, begin)


def _next_line(file: IO[bytes], begin: int) -> int:
    if not begin:
        return 0
    file.seek(begin - 1)
    return begin - 1 + len(file.readline())


def jsonl_sink(stream: DataStream, config: JsonlFiles, *, uid: str | None = None) -> None:
    """Write each string as a line, exactly once, in the order of its subtask."""
    from pyflink.common import Encoder
    from pyflink.datastream.connectors.file_system import (
        BucketAssigner,
        FileSink,
        OutputFileConfig,
        RollingPolicy,
    )

    sink = (
        FileSink.for_row_format(uri_of(config.path), Encoder.simple_string_encoder("UTF-8"))
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .with_output_file_config(
            OutputFileConfig.builder().with_part_prefix(_prefix(config)).with_part_suffix(".jsonl").build()
        )
        .build()
    )
    written = stream.sink_to(sink).name(f"files {config.path.name}")
    written.set_parallelism(stream._j_data_stream.getParallelism())
    if uid is not None:
        written.uid(uid)


def committed_parts(path: Location) -> list[Part]:
    """By the time of their last line. Raises as `S3Client`.

    After a checkpoint without a line, Flink renames a subtask's next file and counts from 0 again.
    """
    named = [(COMMITTED.fullmatch(part.name), part) for part in _parts(path)]
    ordered = [(part.written_ns, match[1], int(match[2]), part) for match, part in named if match is not None]
    return [part for *_, part in sorted(ordered, key=lambda each: each[:3])]


def _prefix(config: JsonlFiles) -> str:
    job = config.job[:JOB_CHARS]
    if config.grows:
        return prefix_of(job)
    return f"part-{job}" if job else "part"


def _parts(path: Location) -> Iterator[Part]:
    if isinstance(path, Path):
        for file in path.glob("part-*.jsonl"):
            status = file.stat()
            yield Part(path, file.name, status.st_mtime_ns, status.st_size)
        return
    for entry in S3Client(path.bucket).entries(path.key):
        if "/" not in entry.name:
            yield Part(path, entry.name, round(entry.written_s * 1e9), entry.size)


def read_jsonl_sink(path: Location) -> Iterator[bytes]:
    """Without newlines; in order for each subtask."""
    for part in committed_parts(path):
        yield from part.lines()


log = logging.getLogger(__name__)

HIDDEN = re.compile(r"(?P<writer>\.new-(?P<job>[^-]+)-.+)-(?P<count>\d+)\.jsonl")
MOVING = re.compile(r"\.at-(?P<file>\d+)-(?P<offset>\d+)(?P<name>\.new-(?P<job>[^-]+)-.+\.jsonl)")
MAX_BYTES = 256 << 20
LOCK = ".lock"
POLL_S = 0.05
REST_S = 1.0
"""inotify(7) misses changes by other machines on a network file system."""
FINISH_TRIES = 100
IDLE_SHARE = 20
CHUNK_BYTES = 1 << 20


def prefix_of(job: str) -> str:
    return f".new-{job}"


@dataclass(frozen=True, slots=True)
class Move:
    source: Path
    target: Path
    offset: int


class GrowingFiles:
    """The files of a folder, `part-JOB-N.jsonl`. Readers may remove or empty those that they have read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def move(self) -> bool:
        """Move the lines of committed files; blocks. False if another process does that.

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
                return any(HIDDEN.fullmatch(each.name) or MOVING.fullmatch(each.name) for each in found)
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
        found = ((path, HIDDEN.fullmatch(path.name)) for path in self._folder.iterdir())
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
        found = map(COMMITTED.fullmatch, os.listdir(self._folder))
        number = max((int(name[2]) for name in found if name is not None and name[1] == job), default=0)
        file = self._file(job, number)
        return number, file.stat().st_size if file.exists() else 0

    def _file(self, job: str, number: int) -> Path:
        return self._folder / f"part-{job}-{number}.jsonl"

    def _write(self, moves: Iterable[Move]) -> None:
        moves = list(moves)
        if not moves:
            return
        done: list[Path] = []
        gone: list[Path] = []
        for target in dict.fromkeys(move.target for move in moves):
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            with os.fdopen(descriptor, "wb") as file:
                here = [move for move in moves if move.target == target]
                here = self._without_gaps(here, os.fstat(descriptor).st_size)
                for move in here:
                    file.seek(move.offset)
                    with move.source.open("rb") as lines:
                        shutil.copyfileobj(lines, file, CHUNK_BYTES)
                        written_ns = os.fstat(lines.fileno()).st_mtime_ns
                file.flush()
                os.fsync(file.fileno())
                # The time of the last line (`Part.written_ns`), not of the move.
                os.utime(file.fileno(), ns=(written_ns, written_ns))
                if is_at(target, descriptor):
                    done += (move.source for move in here)
                else:
                    gone.append(target)
        for source in done:
            source.unlink()
        if gone:
            raise FileNotFoundError(f"{gone[0]} was removed while lines were added to it")

    def _without_gaps(self, moves: Iterable[Move], end: int) -> list[Move]:
        """Move lines forward if a reader has removed or emptied the file since their offsets were chosen."""
        kept = []
        for move in moves:
            source, offset = move.source, move.offset
            name = MOVING.fullmatch(source.name)
            assert name is not None
            if offset > end:
                source, offset = (
                    source.rename(source.with_name(f".at-{name['file']}-{end}{name['name']}")),
                    end,
                )
            end = max(end, offset + source.stat().st_size)
            kept.append(Move(source, move.target, offset))
        # For a power failure: names must be on disk before lines are, and lines before names go.
        _sync(self._folder)
        return kept


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class GrowingSinks:
    """Moves committed lines at once, then on a thread, and a last time in `close`.

    `results`: the folders that the job writes to; `earlier`: of former runs, where lines may still be hidden.
    """

    def __init__(self, results: Iterable[Path], earlier: Iterable[Path] = ()) -> None:
        self._results = list(results)
        self._folders = [*self._results, *earlier]
        self._files = [GrowingFiles(folder) for folder in self._folders]
        self._moving = threading.Lock()
        self._closed = threading.Event()
        self._failure = ""
        self._held: dict[Path, int] = {}
        self._changes = FolderChanges(self._folders)
        self._thread = threading.Thread(target=self._run, name="growing-files", daemon=True)
        if self._files:
            self.check_held()
            self.move()
            self._thread.start()

    def move(self) -> bool:
        with self._moving:
            failure, done = "", True
            for files in self._files:
                try:
                    done &= files.move()
                except OSError as error:
                    failure, done = str(error), False
            if failure and failure != self._failure:
                log.warning("committed results are not visible yet, which is tried again: %s", failure)
            self._failure = failure
        return done

    def check_held(self) -> None:
        """Raise `ResultsLost` if a folder of results was removed or replaced: Flink does not notice."""
        for folder in self._results:
            if folder not in self._held:
                with suppress(OSError):
                    self._held[folder] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            elif not is_at(folder, self._held[folder]):
                raise ResultsLost(
                    f"{folder} was removed or replaced during the run, and results in its hidden files may "
                    f"be lost. Continue without them with --from-checkpoint, or make all results again with "
                    f"--fresh"
                )

    def finish(self) -> str:
        """Move everything, waiting for other processes. Returns why that failed, or an empty text."""
        for _ in range(FINISH_TRIES):
            if self.move():
                return ""
            time.sleep(POLL_S)
        return self._failure or f"another process holds {LOCK} in the folder of the results"

    def close(self) -> None:
        self._closed.set()
        self._changes.stop()
        if self._files:
            self._thread.join()
        self._changes.close()
        self.move()
        for descriptor in self._held.values():
            os.close(descriptor)

    def _run(self) -> None:
        done = True
        while True:
            # A failed move is retried: the kernel reports no event for files that stayed.
            self._changes.wait(REST_S if done else POLL_S, poll_s=POLL_S)
            if self._closed.is_set():
                return
            begun_s = time.monotonic()
            done = self.move()
            self._closed.wait(max(POLL_S, IDLE_SHARE * (time.monotonic() - begun_s)))
