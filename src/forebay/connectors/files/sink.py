"""Sink to files of JSON lines that hold each result exactly once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pyflink.common import Encoder
from pyflink.datastream import DataStream
from pyflink.datastream.connectors.file_system import (
    BucketAssigner,
    FileSink,
    OutputFileConfig,
    RollingPolicy,
)

from forebay.clients.s3.client import S3Client
from forebay.clients.s3.location import Location, uri_of
from forebay.connectors.files.growing import prefix_of

COMMITTED = re.compile(r"part-(.+)-(\d+)\.jsonl")
JOB_CHARS = 12


@dataclass(frozen=True, slots=True)
class JsonlFiles:
    """A directory of `part-*.jsonl` files. `job`, the job's id, becomes part of the names.

    A file appears when a checkpoint completes (without checkpoints: when a bounded job ends) and never
    changes; until then its name starts with a dot. With `grows`, the files of checkpoints stay hidden, and
    `GrowingSinks` puts them together.
    """

    path: Location
    job: str = ""
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A committed file; `written_ns`: wall clock of its last line."""

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
        """Where the first line begins at byte `begin` or later. Files of an object store are read whole."""
        if not isinstance(self.folder, Path):
            return self.size if begin else 0
        with (self.folder / self.name).open("rb") as file:
            return _next_line(file, begin)


def _next_line(file: IO[bytes], begin: int) -> int:
    if not begin:
        return 0
    file.seek(begin - 1)
    return begin - 1 + len(file.readline())


class FollowedLines:
    """The committed lines of a folder, each once, as they appear.

    Of the files that are there at first, only the `newest` are read, and of those only the newest lines, in
    all at most `most_bytes`; None: all.
    """

    def __init__(self, path: Location, newest: int | None = None, most_bytes: int | None = None) -> None:
        self._path = path
        self._newest = newest
        self._most_bytes = most_bytes
        self._read: dict[str, int] | None = None

    def new(self) -> Iterator[bytes]:
        """The lines since the last call, without newlines. Raises as `committed_parts`, and `OSError`."""
        parts = committed_parts(self._path)
        if self._read is None:
            self._read = self._old(parts)
        for part in parts:
            begin = self._read.get(part.name, 0)
            if part.size <= begin:
                continue
            for line in part.lines(begin):
                begin += len(line) + 1
                self._read[part.name] = begin
                yield line

    def _old(self, parts: list[Part]) -> dict[str, int]:
        """How many bytes of each file are not read."""
        left = sum(part.size for part in parts) if self._most_bytes is None else self._most_bytes
        old = {}
        for number, part in enumerate(reversed(parts)):
            kept = min(part.size, left) if self._newest is None or number < self._newest else 0
            left -= kept
            old[part.name] = part.next_line(part.size - kept)
        return old


def jsonl_sink(stream: DataStream, config: JsonlFiles, *, uid: str | None = None) -> None:
    """Write each string as a line, exactly once under restore.

    Uses the stream's parallelism and keeps each subtask's order, in files of its own. With a `uid`, unique in
    the job, a changed job finds the sink's state again.
    """
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
    """By the time of their last line, so each subtask's are in order; empty without the directory.

    Names do not give the order: after a checkpoint without a line, Flink gives a subtask's next file a new
    writer name and counts from 0 again. (An object store's times are whole seconds; within one, names
    decide.) Raises as `S3Client`.
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
