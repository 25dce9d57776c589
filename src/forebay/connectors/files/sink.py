"""Sink to files of JSON lines that hold each result exactly once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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

COMMITTED = re.compile(r"part-(.+)-(\d+)\.jsonl")
JOB_CHARS = 12


@dataclass(frozen=True, slots=True)
class JsonlFiles:
    """A directory of `part-*.jsonl` files.

    A file appears when a checkpoint completes (without checkpoints: when a bounded job ends) and never
    changes; until then its name starts with a dot. `job`, the job's id, becomes part of the names.
    """

    path: Location
    job: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A committed file; `written_ns`: wall clock of its last line."""

    folder: Location
    name: str
    written_ns: int

    def lines(self, begin: int = 0) -> Iterator[bytes]:
        """Without newlines, from the byte `begin` on; of an object store's file, which never grows, all."""
        if not isinstance(self.folder, Path):
            yield from S3Client(self.folder.bucket).lines(f"{self.folder.key}/{self.name}")
            return
        with (self.folder / self.name).open("rb") as file:
            file.seek(begin)
            for line in file:
                yield line.rstrip(b"\n")


class FollowedLines:
    """The committed lines of a folder, each once, as they appear. `newest`: how many of the files that are
    there at the first look are read, the newest ones; None: all."""

    def __init__(self, path: Location, newest: int | None = None) -> None:
        self._path = path
        self._newest = newest
        self._read: dict[str, tuple[int, int]] = {}

    def new(self) -> Iterator[bytes]:
        """The lines since the last call, without newlines. Raises as `committed_parts`, and `OSError`."""
        parts = committed_parts(self._path)
        if self._newest is not None:
            parts, old = parts[-self._newest :], parts[: -self._newest]
            self._read = {part.name: (part.written_ns, 0) for part in old}
            self._newest = None
        for part in parts:
            written_ns, begin = self._read.get(part.name, (-1, 0))
            if part.written_ns == written_ns:
                continue
            for line in part.lines(begin):
                begin += len(line) + 1
                self._read[part.name] = written_ns, begin
                yield line
            self._read[part.name] = part.written_ns, begin


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
            OutputFileConfig.builder()
            .with_part_prefix(_prefix(config.job))
            .with_part_suffix(".jsonl")
            .build()
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


def _prefix(job: str) -> str:
    return f"part-{job[:JOB_CHARS]}" if job else "part"


def _parts(path: Location) -> Iterator[Part]:
    if isinstance(path, Path):
        for file in path.glob("part-*.jsonl"):
            yield Part(path, file.name, file.stat().st_mtime_ns)
        return
    for entry in S3Client(path.bucket).entries(path.key):
        if "/" not in entry.name:
            yield Part(path, entry.name, round(entry.written_s * 1e9))


def read_jsonl_sink(path: Location) -> Iterator[bytes]:
    """Without newlines; in order for each subtask."""
    for part in committed_parts(path):
        yield from part.lines()
