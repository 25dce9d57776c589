"""Where JSON lines go: files that hold each result exactly once, or standard output."""

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

COMMITTED = re.compile(r"part-(.+)-(\d+)\.jsonl")
JOB_CHARS = 12


@dataclass(frozen=True, slots=True)
class JsonlFiles:
    """A directory of `part-*.jsonl` files.

    A file appears under its name when a checkpoint has completed, and never changes after; until then it is
    hidden (its name starts with a dot). Without checkpoints, files appear when a bounded job ends. With
    `job`, the id of the job that writes them, their names say which it was: `committed_by` finds them.
    """

    path: Path
    job: str = ""


def jsonl_sink(stream: DataStream, config: JsonlFiles, *, uid: str | None = None) -> None:
    """Write each string of `stream` as a line, exactly once under restore. Nothing runs until execution.

    The sink has the stream's parallelism: what one subtask emits stays in order, in files of its own. With a
    `uid`, one in its job, its state is found again where what lies before it in the job has changed.
    """
    sink = (
        FileSink.for_row_format(config.path.absolute().as_uri(), Encoder.simple_string_encoder("UTF-8"))
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


def committed_parts(path: Path) -> list[Path]:
    """The committed files of a JSONL sink, by the time of their last line; none without the directory.

    So each subtask's are in the order written. Names do not tell: after a checkpoint without a line, Flink
    gives a subtask's next file a new writer name and counts from 0 again.
    """
    named = [(COMMITTED.fullmatch(file.name), file) for file in path.glob("part-*.jsonl")]
    ordered = sorted(
        (file.stat().st_mtime_ns, match[1], int(match[2]), file) for match, file in named if match is not None
    )
    return [file for *_, file in ordered]


def committed_by(path: Path, job: str) -> bool:
    """Whether a file of the sink was committed that the job with this id wrote."""
    return any(path.glob(f"{_prefix(job)}-*.jsonl"))


def _prefix(job: str) -> str:
    return f"part-{job[:JOB_CHARS]}" if job else "part"


def read_jsonl_sink(path: Path) -> Iterator[bytes]:
    """The committed lines of a JSONL sink, without their ends; in order for each subtask."""
    for part in committed_parts(path):
        with part.open("rb") as file:
            for line in file:
                yield line.rstrip(b"\n")
