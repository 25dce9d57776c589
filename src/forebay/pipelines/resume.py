"""What the runs of a pipeline leave for the next one: a lock, a note of the last run, and checkpoints."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from forebay.connectors.sinks import committed_parts
from forebay.engine.launch.processes import is_same, kill, wait_gone
from forebay.errors import LaunchError, PipelineFailed, SettingError
from forebay.operators.environment import newest_checkpoint
from forebay.operators.job import end_job
from forebay.pipelines.detection import TopicsSpec, TrendsSpec
from forebay.pipelines.spec import PipelineSpec

ORPHAN_S = 30.0
KEPT_LOGS = 20
JOB_DIRECTORY = re.compile(r"[0-9a-f]{32}")
SOURCE_KEYS = (
    "type",
    "path",
    "url",
    "follow",
    "seed",
    "rate",
    "count",
    "burst",
    "paced",
    "topics",
    "pattern",
    "format",
)


@dataclass(frozen=True, slots=True)
class Note:
    """What is kept of a pipeline's last run.

    `traits` are the settings that its checkpoints are bound to. `submitted_s` is wall-clock time. `jvm` is
    the process of an embedded cluster; `cluster` and `job` say where else it ran, and under which id.
    `checkpointed`: that job has completed a checkpoint. `ends`
    are topics, partitions and the offsets at which they ended when the pipeline was first started. `kafka` is
    what the Kafka that was read calls itself.
    """

    finished: bool = False
    traits: dict[str, Any] | None = None
    submitted_s: float | None = None
    jvm: tuple[int, float] | None = None
    cluster: str | None = None
    job: str | None = None
    checkpointed: bool = False
    ends: Sequence[tuple[str, int, int]] | None = None
    kafka: str | None = None


@contextmanager
def held(home: Path, name: str) -> Iterator[None]:
    """Only one run of a pipeline at a time: two would restore the same state. `SettingError` for a second."""
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SettingError(f"pipeline {name!r} is running already, with its state in {home}") from None
        yield


def read_note(home: Path) -> Note:
    """The note of the last run; an empty one where there is none that can be read."""
    try:
        return Note(**json.loads((home / "run.json").read_text()))
    except (OSError, ValueError, TypeError):
        return Note()


def write_note(home: Path, note: Note) -> None:
    """Replace the note, whole or not at all."""
    written = home / "run.json.new"
    written.write_text(json.dumps(asdict(note)))
    os.replace(written, home / "run.json")


def end_orphan(home: Path) -> None:
    """Make sure that nothing of the last run goes on, and note its end where it came to one by itself.

    What a killed command leaves behind would complete a checkpoint or commit results that the next run gives
    again. An embedded cluster ends by itself, only not at once; a job on a cluster does not. Raises
    `SettingError` where that cluster does not answer.
    """
    note = read_note(home)
    if note.finished:
        return
    if note.jvm and is_same(*note.jvm):
        _end_process(note.jvm[0])
    if note.cluster is None or note.job is None:
        return
    try:
        end = end_job(f"http://{note.cluster}", note.job, ORPHAN_S)
    except LaunchError as error:
        raise SettingError(
            f"the last run is job {note.job} on a cluster that cannot be asked whether it ended ({error}); "
            f"make sure that it has, and remove {home / 'run.json'}"
        ) from None
    if end == "FINISHED":
        write_note(home, replace(note, finished=True))


def _end_process(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        orphan = {psutil.Process(pid)}
        kill(orphan)
        if wait_gone(orphan, ORPHAN_S):
            raise PipelineFailed(f"the JVM of an earlier run (process {pid}) cannot be ended")


def checkpoint_to_resume(spec: PipelineSpec, home: Path) -> Path | None:
    """The checkpoint that a run of `spec` goes on from; None: it starts at the beginning.

    Raises `SettingError` where the pipeline has finished, or its state was made with other settings or with
    Python in worker processes.
    """
    note, newest = read_note(home), newest_checkpoint(home)
    if note.finished or _ended_unnoted(spec, home, note, newest):
        raise SettingError(
            f"pipeline {spec.name!r} has finished: its results are in the sink. Run it again from the "
            f"beginning with --fresh"
        )
    if newest is not None and note.traits is not None:
        if note.traits.get("mode", "thread") != "thread":
            raise SettingError(
                "the checkpoint was made with `mode: process`, whose state cannot be read any more: Python "
                "runs inside Flink's JVM now. Finish the run with the version of Forebay that began it, or "
                "start over with --fresh"
            )
        for key, value in traits(spec).items():
            if key in note.traits and value != note.traits[key]:
                raise SettingError(
                    f"{key}: expected {note.traits[key]}, as in the checkpoint, found {value}; its state "
                    f"does not fit (--fresh starts over)"
                )
    return newest


def check_same_kafka(note: Note, kafka: str | None) -> None:
    """Raises `SettingError` where a checkpoint has offsets of another Kafka than the one that is read now:
    addresses may change, offsets mean nothing elsewhere."""
    if None not in (note.kafka, kafka) and note.kafka != kafka:
        raise SettingError(
            f"source.bootstrap: the checkpoint holds offsets of the Kafka that calls itself {note.kafka}, "
            f"this one is {kafka}; --fresh starts over"
        )


def forget(home: Path) -> None:
    """Delete the checkpoints and the note: a crash must not bring them back."""
    for path in home.iterdir():
        if JOB_DIRECTORY.fullmatch(path.name):
            shutil.rmtree(path)
    (home / "run.json").unlink(missing_ok=True)


class Tidy:
    """Deletes what a pipeline's earlier jobs left in `home`, once `job` has a complete checkpoint of its own.

    That one needs no file of another job: Flink does not claim what it restores. `restored`, which the run
    resumed from, stays: Flink deletes a job's own checkpoints when it finishes, and a run that is killed
    before it could note that has its place there.
    """

    def __init__(self, home: Path, job: str, restored: Path | None) -> None:
        self._home = home
        self._job = job
        self._kept = {job} if restored is None else {job, restored.parent.name}
        self._done = False

    def __call__(self) -> None:
        if self._done or not any((self._home / self._job).glob("chk-*/_metadata")):
            return
        self._done = True
        write_note(self._home, replace(read_note(self._home), checkpointed=True))
        for path in self._home.iterdir():
            if JOB_DIRECTORY.fullmatch(path.name) and path.name not in self._kept:
                shutil.rmtree(path, ignore_errors=True)


def tidy_logs(folder: Path) -> None:
    """Delete all but the newest `KEPT_LOGS` files of Flink's logs in `folder`, if it is there."""
    with suppress(FileNotFoundError):
        logs = sorted(folder.glob("flink-*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in logs[KEPT_LOGS:]:
            path.unlink()


def traits(spec: PipelineSpec) -> dict[str, Any]:
    """The settings that a checkpoint is bound to.

    State of worker processes, which older versions had (`mode`), cannot be read; order within a key, and what
    an application keeps for it, live as long as the number of shards; positions are those of one source, and
    state is found again by the form of the job.
    """
    source = spec.source.model_dump(mode="json")
    if "url" in source:
        # Not the address itself: it may hold secrets.
        source["url"] = (
            "one with the hash " + hashlib.blake2b(source["url"].encode(), digest_size=8).hexdigest()
        )
    found: dict[str, Any] = {
        "mode": "thread",
        "sink.type": spec.sink.type,
        "event_time": "set" if spec.event_time else "null",
        "application.type": spec.application.type if spec.application else "null",
        "source.replay": "set" if source.get("replay") else "null",
        **{f"source.{key}": source[key] for key in SOURCE_KEYS if key in source},
    }
    if spec.ordering == "key" or spec.application is not None:
        found["shards"] = spec.shards
    if spec.application is not None:
        found["application.type"] = spec.application.type
    if isinstance(spec.application, TrendsSpec):
        found["shards"] = spec.shards
    if isinstance(spec.application, TopicsSpec):
        found["application.embeddings"] = spec.application.embeddings
        found["application.topic_shards"] = spec.application.topic_shards
    return found


def _ended_unnoted(spec: PipelineSpec, home: Path, note: Note, newest: Path | None) -> bool:
    """Whether the last run came to its end but was killed before it could note that.

    Flink deletes a job's checkpoints when it finishes; what is left then are older ones, of a run before. A
    run that has committed something and has no checkpoint can only have finished.
    """
    if note.checkpointed and note.job is not None and not any((home / note.job).glob("*/_metadata")):
        return True
    submitted_s = note.submitted_s
    if submitted_s is None or (newest and (newest / "_metadata").stat().st_mtime > submitted_s):
        return False
    paths = spec.directories().values()
    # What a restore commits was written before the run began.
    return any(part.stat().st_mtime > submitted_s for path in paths for part in committed_parts(Path(path)))
