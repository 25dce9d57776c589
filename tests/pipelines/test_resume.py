"""What a run resumes from, and what it refuses to resume."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.engine.launch.processes import birth_s
from forebay.errors import SettingError
from forebay.pipelines.load import parse_spec
from forebay.pipelines.resume import (
    KEPT_LOGS,
    Note,
    Tidy,
    check_same_kafka,
    checkpoint_to_resume,
    end_orphan,
    forget,
    read_note,
    tidy_logs,
    traits,
    write_note,
)
from forebay.pipelines.spec import PipelineSpec


class Place:
    """A pipeline's folder with the traces of earlier runs; times are seconds since 1970."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / ".forebay" / "p" / "checkpoints"
        self.home.mkdir(parents=True)

    def spec(self, **changes: Any) -> PipelineSpec:
        document = {
            "name": "p",
            "source": {"type": "jsonl", "path": "in.jsonl"},
            "prompt": "x",
            "sink": {"type": "jsonl", "path": "out"},
        }
        return parse_spec({**document, **changes}, base=self.folder)

    def checkpoint(self, job: str, at_s: float) -> Path:
        checkpoint = self.home / (job * 32) / "chk-1"
        self._touch(checkpoint / "_metadata", at_s)
        return checkpoint

    def committed(self, at_s: float, sink: str = "out") -> None:
        self._touch(self.folder / sink / "part-x-0.jsonl", at_s)

    def submitted(self, at_s: float, **changes: Any) -> None:
        write_note(self.home, Note(traits=traits(self.spec(**changes)), submitted_s=at_s))

    def prepare(self, **changes: Any) -> Path | None:
        return checkpoint_to_resume(self.spec(**changes), self.home)

    @staticmethod
    def _touch(path: Path, at_s: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (at_s, at_s))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_first_run_starts_at_the_beginning(place: Place) -> None:
    assert place.prepare() is None


def test_a_run_resumes_from_its_own_checkpoint(place: Place) -> None:
    place.checkpoint("a", 50)
    place.submitted(100)
    newest = place.checkpoint("b", 110)
    place.committed(111)
    assert place.prepare() == newest


def test_offsets_mean_nothing_in_another_kafka() -> None:
    for note, kafka in ((None, "A"), ("A", "A"), ("A", None)):
        check_same_kafka(Note(kafka=note), kafka)
    with pytest.raises(SettingError, match="calls itself A, this one is B"):
        check_same_kafka(Note(kafka="A"), "B")


def test_a_run_that_died_before_its_first_checkpoint_goes_on_from_the_one_before(place: Place) -> None:
    newest = place.checkpoint("a", 50)
    place.committed(50)
    place.submitted(100)
    assert place.prepare() == newest


@pytest.mark.parametrize("sink", ["out", "out-dead-letters"])
def test_an_end_that_was_not_noted_is_seen_by_what_it_committed(place: Place, sink: str) -> None:
    """Flink deletes the checkpoints of a job that finishes: what is left is older, and would be run again."""
    place.checkpoint("a", 50)
    place.submitted(100)
    place.committed(105, sink)
    with pytest.raises(SettingError, match="has finished"):
        place.prepare()
    forget(place.home)
    assert place.prepare() is None


def test_an_end_that_was_not_noted_is_seen_where_results_are_in_a_topic(place: Place) -> None:
    """A job that has had a checkpoint of its own and has none now has finished: Flink has deleted them."""
    place.checkpoint("a", 50)
    own = place.checkpoint("b", 110)
    place.submitted(100)
    note = replace(read_note(place.home), job="b" * 32)
    write_note(place.home, note)
    Tidy(place.home, "b" * 32, None)()
    assert read_note(place.home).checkpointed
    assert place.prepare() == own
    shutil.rmtree(own)
    with pytest.raises(SettingError, match="has finished"):
        place.prepare()
    write_note(place.home, note)
    assert place.prepare() is None, "without a checkpoint of its own, it may have died at its start"


def test_state_of_worker_processes_is_refused_with_what_to_do(place: Place) -> None:
    place.checkpoint("a", 50)
    found = traits(place.spec())
    write_note(place.home, Note(traits={**found, "mode": "process"}, submitted_s=40))
    with pytest.raises(SettingError, match=r"made with `mode: process`.*inside Flink's JVM now.*--fresh"):
        place.prepare()
    # Runs of older versions say so where Python ran inside the JVM, too.
    write_note(place.home, Note(traits={**found, "mode": "thread"}, submitted_s=40))
    assert place.prepare() is not None


def test_what_an_application_remembers_is_bound_to_its_shards_and_its_kind(place: Place) -> None:
    sessions = {"application": {"type": "sessions"}, "key": "{{ user }}", "prompt": None}
    place.checkpoint("a", 50)
    place.submitted(40, **sessions)
    assert place.prepare(**sessions, parallelism=2) is not None
    with pytest.raises(SettingError, match="shards: expected 8, as in the checkpoint, found 4"):
        place.prepare(**sessions, shards=4)
    with pytest.raises(SettingError, match=r"application\.type"):
        place.prepare()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def test_an_orphaned_jvm_is_ended_before_anything_is_resumed(
    place: Place, sleeper: subprocess.Popen[bytes]
) -> None:
    born_s = birth_s(sleeper.pid)
    assert born_s is not None
    write_note(place.home, Note(submitted_s=1.0, jvm=(sleeper.pid, born_s)))
    end_orphan(place.home)
    assert sleeper.wait(180) == -9


def test_a_stranger_with_the_jvms_number_is_left_alone(
    place: Place, sleeper: subprocess.Popen[bytes]
) -> None:
    born_s = birth_s(sleeper.pid)
    assert born_s is not None
    write_note(place.home, Note(submitted_s=1.0, jvm=(sleeper.pid, born_s - 100)))
    end_orphan(place.home)
    assert sleeper.poll() is None


def test_a_note_that_cannot_be_read_is_none(place: Place) -> None:
    (place.home / "run.json").write_text("{")
    end_orphan(place.home)
    assert place.prepare() is None
    (place.home / "run.json").write_text(json.dumps([1]))
    assert place.prepare() is None


def jobs(place: Place) -> set[str]:
    return {path.name[0] for path in place.home.iterdir() if path.is_dir()}


def test_older_jobs_are_deleted_once_the_run_has_a_checkpoint_of_its_own(place: Place) -> None:
    place.checkpoint("a", 10)
    restored = place.checkpoint("b", 20)
    (place.home / "elsewhere").mkdir()
    tidy = Tidy(place.home, "c" * 32, restored)
    (place.home / ("c" * 32) / "chk-1").mkdir(parents=True)
    tidy()
    assert jobs(place) == {"a", "b", "c", "e"}
    place.checkpoint("c", 30)
    tidy()
    assert jobs(place) == {"b", "c", "e"}


def test_an_end_that_was_not_noted_after_a_run_that_committed_nothing_repeats_nothing(place: Place) -> None:
    """Flink deletes the checkpoints of a job that finishes: the place is that of the run before."""
    restored = place.checkpoint("a", 50)
    place.committed(50)
    place.submitted(100)
    place.checkpoint("b", 110)
    Tidy(place.home, "b" * 32, restored)()
    forget_job(place, "b")
    assert place.prepare() == restored


def forget_job(place: Place, job: str) -> None:
    shutil.rmtree(place.home / (job * 32))


def test_a_run_that_began_at_the_beginning_needs_no_other_job(place: Place) -> None:
    (place.home / ("a" * 32)).mkdir()
    place.checkpoint("b", 30)
    Tidy(place.home, "b" * 32, None)()
    assert jobs(place) == {"b"}


def test_the_newest_logs_stay(tmp_path: Path) -> None:
    tidy_logs(tmp_path / "none")
    for number in range(KEPT_LOGS + 3):
        log = tmp_path / f"flink-jvm-{number}.err"
        log.touch()
        os.utime(log, (number, number))
    (tmp_path / "mine").touch()
    tidy_logs(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == KEPT_LOGS + 1
    assert {"mine", f"flink-jvm-{KEPT_LOGS + 2}.err"} <= left
    assert "flink-jvm-2.err" not in left
