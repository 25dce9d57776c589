"""What a run resumes from, and what it rejects."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.harness.operators import complete_checkpoint

from forebay.errors import SettingError
from forebay.flink.checkpoints import END_MARK, checkpoints_of
from forebay.pipeline.fingerprint import changed_traits, check_same_kafka, fingerprint, traits_to_record
from forebay.pipeline.load import parse_spec
from forebay.pipeline.plan import resolved
from forebay.pipeline.resume import (
    KEPT_LOGS,
    CheckpointCleaner,
    checkpoint_to_resume,
    clean_logs,
    end_orphan,
    forget,
    found_state,
    resume_text,
)
from forebay.pipeline.spec import PipelineSpec
from forebay.pipeline.state_store import Completed, LocalStore, RunState, read_state, write_state
from forebay.processes import birth_s, pid_space

JOB_A, JOB_B, JOB_C = "a" * 32, "b" * 32, "c" * 32


class Place:
    """A pipeline's folder with state of earlier runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / ".forebay" / "p" / "checkpoints"
        self.home.mkdir(parents=True)
        self.store = LocalStore(self.home)

    def spec(self, **changes: Any) -> PipelineSpec:
        document = {
            "name": "p",
            "source": {"type": "jsonl", "path": "in.jsonl"},
            "prompt": "x",
            "sink": {"type": "jsonl", "path": "out"},
        }
        return parse_spec({**document, **changes}, base=self.folder)

    def checkpoint(self, job: str, number: int, written_s: int = 1000) -> Path:
        checkpoint = complete_checkpoint(self.home / job, number)
        os.utime(checkpoint / "_metadata", (written_s, written_s))
        return checkpoint

    def started(self, job: str, restored: Path | None = None, **changes: Any) -> None:
        """A run's job as recorded before its submission."""
        below = None if restored is None else str(restored.relative_to(self.home))
        self.write(job=job, restored=below, completed=None, traits=fingerprint(self.spec(**changes)))

    def mark(self, job: str) -> None:
        """Complete the job's final checkpoint."""
        (self.home / job).mkdir(exist_ok=True)
        (self.home / job / END_MARK).touch()

    def delete_checkpoints(self, job: str) -> None:
        """Do as Flink does when a job finishes: delete its checkpoints, and keep their folder."""
        for checkpoint in checkpoints_of(self.home / job):
            shutil.rmtree(checkpoint.path)

    def write(self, **changes: Any) -> None:
        write_state(self.home, self.state.model_copy(update=changes))

    @property
    def state(self) -> RunState:
        return read_state(self.home) or RunState()

    def noted(self, job: str, restored: Path | None = None) -> None:
        """Record the newest checkpoint of the run's job."""
        CheckpointCleaner(self.store, job, restored)(self.state, 1)

    def prepare(self, **changes: Any) -> Path | None:
        return checkpoint_to_resume(self.spec(**changes), self.store, found_state(self.store))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_first_run_starts_at_the_beginning(place: Place) -> None:
    assert place.prepare() is None


def test_a_resume_names_its_checkpoint_and_what_has_changed(place: Place) -> None:
    checkpoint = place.checkpoint(JOB_A, 4)
    state = RunState(
        settings=resolved(place.spec()), completed=Completed(number=4, triggered_ms=1_767_225_600_000)
    )
    text = "resuming from checkpoint chk-4 of 2026-01-01 00:00:00 UTC"
    assert resume_text(checkpoint, state, resolved(place.spec())) == text
    changed = resolved(place.spec(capacity=8, prompt="y\nz", key="{{ k }}", checkpoint={"interval_s": 2}))
    assert resume_text(checkpoint, state, changed) == (
        f"{text}; changed since the last run: prompt, key null → {{{{ k }}}}, capacity 64 → 8, "
        f"checkpoint.interval_s 5.0 → 2.0"
    )
    many = resolved(
        place.spec(**dict.fromkeys(("capacity", "timeout_s", "deadline_s", "shards"), 9), key="k", id="i")
    )
    assert resume_text(checkpoint, state, many).endswith("timeout_s 60.0 → 9.0, deadline_s")
    assert resume_text(checkpoint, RunState(), many) == "resuming from checkpoint chk-4"


def test_run_resumes_from_its_own_checkpoint(place: Place) -> None:
    restored = place.checkpoint(JOB_A, 4)
    place.started(JOB_B, restored)
    newest = place.checkpoint(JOB_B, 5)
    assert place.prepare() == newest
    # What it is to commit may not be committed yet.
    place.mark(JOB_B)
    assert place.prepare() == newest


def test_record_decides_not_the_clock(place: Place) -> None:
    """The clock was set back an hour before the second job, or the copy has other file times."""
    restored = place.checkpoint(JOB_A, 4, written_s=9000)
    place.started(JOB_B, restored)
    place.checkpoint(JOB_B, 5, written_s=5000)
    newest = place.checkpoint(JOB_B, 6, written_s=4000)
    assert place.prepare() == newest


def test_job_without_a_checkpoint_restarts_from_its_start(place: Place) -> None:
    restored = place.checkpoint(JOB_A, 4)
    place.checkpoint(JOB_A, 5)
    place.started(JOB_B, restored)
    assert place.prepare() == restored, "somebody chose it with --from-checkpoint"
    place.started(JOB_C, None)
    assert place.prepare() is None


def test_offsets_of_another_kafka_are_rejected() -> None:
    read, written = RunState(kafka="A"), RunState(sink_kafka={"dead_letters": "A"})
    for state, kafka in ((RunState(), {"source": "A"}), (read, {"source": "A", "sink": "B"}), (read, {})):
        check_same_kafka(state, kafka)
    with pytest.raises(SettingError, match=r"source\.bootstrap: .* offsets of Kafka cluster A, this"):
        check_same_kafka(read, {"source": "B"})
    with pytest.raises(SettingError, match=r"dead_letters\.bootstrap: .* transactions of Kafka cluster A"):
        check_same_kafka(written, {"sink": "A", "dead_letters": "B"})


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("restored", [False, True])
def test_unrecorded_end_is_found_by_its_mark(place: Place, seen: bool, restored: bool) -> None:
    """For every sink, with or without a recorded checkpoint."""
    before = place.checkpoint(JOB_A, 4) if restored else None
    place.started(JOB_B, before)
    place.checkpoint(JOB_B, 5)
    if seen:
        place.noted(JOB_B, before)
    place.mark(JOB_B)
    place.delete_checkpoints(JOB_B)
    with pytest.raises(SettingError, match="has finished"):
        place.prepare()
    forget(place.store, RunState())
    assert place.prepare() is None


def test_job_without_a_mark_has_not_finished(place: Place) -> None:
    restored = place.checkpoint(JOB_A, 4)
    place.mark(JOB_A)
    place.started(JOB_B, restored)
    (place.home / JOB_B / "shared").mkdir(parents=True)
    assert place.prepare() == restored


def test_job_that_only_had_to_commit_commits_again(place: Place) -> None:
    """A task that had ended before the restore does not run again, and marks nothing."""
    restored = place.checkpoint(JOB_A, 4)
    place.mark(JOB_A)
    place.started(JOB_B, restored)
    place.checkpoint(JOB_B, 5)
    place.noted(JOB_B, restored)
    place.delete_checkpoints(JOB_B)
    with pytest.raises(SettingError, match="lacks the checkpoints"):
        place.prepare()
    place.write(restored_at_end=True)
    assert place.prepare() == restored


def test_finished_pipeline_does_not_run_again(place: Place) -> None:
    place.started(JOB_A)
    place.checkpoint(JOB_A, 1)
    place.write(finished=True)
    with pytest.raises(SettingError, match="pipeline 'p' has finished"):
        place.prepare()


def test_copy_without_the_newest_checkpoint_is_rejected(place: Place) -> None:
    place.started(JOB_A)
    place.checkpoint(JOB_A, 4)
    newest = place.checkpoint(JOB_A, 5)
    place.noted(JOB_A)
    shutil.rmtree(newest)
    with pytest.raises(SettingError, match=rf"checkpoint 5 of job {JOB_A} is missing; the newest .*chk-4"):
        place.prepare()


def test_copy_without_any_checkpoint_is_rejected(place: Place) -> None:
    restored = place.checkpoint(JOB_A, 4)
    place.started(JOB_B, restored)
    place.checkpoint(JOB_B, 5)
    place.noted(JOB_B, restored)
    shutil.rmtree(place.home / JOB_B)
    with pytest.raises(SettingError, match=f"lacks the checkpoints of job {JOB_B}.*--from-checkpoint"):
        place.prepare()


def test_copy_without_a_checkpoint_file_is_rejected(place: Place) -> None:
    place.started(JOB_A)
    newest = place.checkpoint(JOB_A, 5)
    (newest / "state").write_bytes(b"12345")
    place.noted(JOB_A)
    assert place.prepare() == newest
    (newest / "state").write_bytes(b"1234")
    with pytest.raises(SettingError, match="is incomplete: 2 of 2 files and 20 of 21 bytes were found"):
        place.prepare()
    (newest / "state").unlink()
    with pytest.raises(SettingError, match="is incomplete: 1 of 2 files"):
        place.prepare()


def test_damaged_checkpoint_is_rejected_without_fallback(place: Place) -> None:
    place.started(JOB_A)
    place.checkpoint(JOB_A, 4)
    (place.checkpoint(JOB_A, 5) / "_metadata").write_bytes(b"")
    with pytest.raises(SettingError, match=r"is cut off: it has 0 bytes. Restore checkpoint chk-5"):
        place.prepare()


def test_missing_start_is_rejected(place: Place) -> None:
    restored = place.checkpoint(JOB_A, 4)
    place.started(JOB_B, restored)
    shutil.rmtree(place.home / JOB_A)
    with pytest.raises(SettingError, match=f"{JOB_A}/chk-4 is missing. Restore it"):
        place.prepare()


def test_checkpoints_without_their_record_are_rejected(place: Place) -> None:
    place.started(JOB_A)
    place.checkpoint(JOB_A, 4)
    (place.home / "run.json").unlink()
    with pytest.raises(SettingError, match=r"holds checkpoints but lacks run.json, which records what"):
        place.prepare()
    assert found_state(place.store, needed=False).job is None


def test_checkpoint_of_another_format_is_rejected_early(place: Place) -> None:
    place.started(JOB_A)
    place.checkpoint(JOB_A, 1)
    record = json.loads((place.home / "run.json").read_text())
    (place.home / "run.json").write_text(json.dumps({**record, "format": 99}))
    with pytest.raises(SettingError, match=r"run.json: format 99; this Forebay reads format 4: .*--fresh"):
        place.prepare()
    assert found_state(place.store, needed=False).job is None


def test_unreadable_record_is_rejected(place: Place) -> None:
    place.started(JOB_A)
    (place.home / "run.json").write_bytes(b"")
    with pytest.raises(SettingError, match=r"run.json cannot be read .* --fresh starts over"):
        place.prepare()
    assert found_state(place.store, needed=False).job is None
    forget(place.store, RunState())
    assert place.prepare() is None


def test_discarded_state_stays_discarded_after_a_kill(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path, **options: Any) -> None:
        raise KeyboardInterrupt

    place.started(JOB_A)
    place.checkpoint(JOB_A, 4)
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        forget(place.store, RunState())
    assert place.prepare() is None


class AnyRuns(RuleBasedStateMachine):
    """Runs start, complete checkpoints, record them, and are killed at any moment; clocks jump. A resume
    always uses the last checkpoint that Flink completed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = Place(Path(mkdtemp()))
        self.jobs = map("{:032x}".format, count(1))
        self.job: str | None = None
        self.newest: Path | None = None
        self.number = 0
        self.tidy: CheckpointCleaner | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.place.folder)

    @rule()
    def start(self) -> None:
        restored = self.place.prepare()
        assert restored == self.newest
        self.job = next(self.jobs)
        self.place.started(self.job, restored)
        self.tidy = CheckpointCleaner(self.place.store, self.job, restored)

    @precondition(lambda self: self.job is not None)
    @rule(written_s=st.integers(0, 2**31))
    def complete(self, written_s: int) -> None:
        assert self.job is not None
        self.number += 1
        self.newest = self.place.checkpoint(self.job, self.number, written_s)
        for old in newest_of_jobs(self.place.home / self.job)[2:]:
            shutil.rmtree(old)

    @precondition(lambda self: self.tidy is not None)
    @rule()
    def see(self) -> None:
        assert self.tidy is not None
        self.tidy(self.place.state, self.number)


def newest_of_jobs(job: Path) -> list[Path]:
    return [checkpoint.path for checkpoint in checkpoints_of(job)]


AnyRuns.TestCase.settings = settings(max_examples=2 * settings.default.max_examples, stateful_step_count=25)
TestAnyRuns = AnyRuns.TestCase


def test_application_state_requires_its_shards_and_type(place: Place) -> None:
    sessions = {"application": {"type": "sessions"}, "key": "{{ user }}", "prompt": None}
    place.started(JOB_A, **sessions)
    place.checkpoint(JOB_A, 1)
    assert place.prepare(**sessions, parallelism=2) is not None
    with pytest.raises(SettingError, match="shards: expected 8, as in the checkpoint, found 4"):
        place.prepare(**sessions, shards=4)
    with pytest.raises(SettingError, match=r"application\.type"):
        place.prepare()


def test_partly_read_file_keeps_its_format(place: Place) -> None:
    source = {"type": "csv", "path": "in.csv", "columns": ["text"]}
    place.started(JOB_A, source=source)
    place.checkpoint(JOB_A, 1)
    assert place.prepare(source={**source, "delimiter": ";"}) is not None
    with pytest.raises(SettingError, match=r"source\.encoding: expected utf-8, as in the .*, found utf-16"):
        place.prepare(source={**source, "encoding": "utf-16"})
    with pytest.raises(SettingError, match=r"source\.columns: expected \[.text.\], .* found null"):
        place.prepare(source={**source, "columns": None})


CSV = {"type": "csv", "path": "in.csv"}
KAFKA = {"type": "kafka", "bootstrap": "k:1", "topics": ["in"]}
BUDGET = {"prices": {"*": {"prompt": 1, "completion": 1}}, "budget": {"per_key_per_day": 1}}


def summary(**settings: Any) -> dict[str, Any]:
    application = {"type": "summary", **settings}
    times = {"event_time": {}, "source": {"type": "jsonl", "path": "in.jsonl", "time": "at"}}
    return {"application": application, "prompt": None, "key": "k", **times}


def topics(**settings: Any) -> dict[str, Any]:
    return {"application": {"type": "topics", **settings}, "prompt": None, "key": "k"}


@pytest.mark.parametrize(
    ("before", "now", "key"),
    [
        ({}, {"source": {"type": "jsonl", "path": "in.jsonl", "limit": 9}}, "source.limit"),
        ({"source": CSV}, {"source": {**CSV, "delimiter": ";"}}, "source.delimiter"),
        ({"source": KAFKA}, {"source": {**KAFKA, "group": "g"}}, "source.group"),
        ({}, {"sink": {"type": "jsonl", "path": "s3://bucket/out"}}, "sink.path"),
        ({}, {"dead_letters": {"type": "jsonl", "path": "s3://bucket/out"}}, "dead_letters.path"),
        ({}, {"flink": {"state.backend.type": "rocksdb"}}, "flink.state.backend.type"),
        ({}, {"flink": {"state.backend": "rocksdb"}}, "flink.state.backend.type"),
        ({"ordering": "key", "key": "a"}, {"ordering": "key", "key": "b"}, "key"),
        ({**BUDGET, "key": "a"}, {**BUDGET, "key": "b"}, "key"),
        (summary(), {**summary(), "key": "b"}, "key"),
        (topics(topic_shards=2), {**topics(topic_shards=2), "key": "b"}, "key"),
        (topics(), topics(labels=False), "application.labels"),
        (summary(), summary(window="sliding"), "application.window"),
        (summary(), summary(size_s=60.0), "application.size_s"),
        (summary(window="sliding"), summary(window="sliding", step_s=450.0), "application.step_s"),
        (summary(window="session"), summary(window="session", gap_s=60.0), "application.gap_s"),
        (summary(), summary(late="correct"), "application.late"),
        (summary(late="correct"), summary(late="correct", allowed_s=60.0), "application.allowed_s"),
    ],
)
def test_settings_that_state_depends_on_are_refused(
    place: Place, before: dict[str, Any], now: dict[str, Any], key: str
) -> None:
    place.started(JOB_A, **before)
    place.checkpoint(JOB_A, 1)
    assert place.prepare(**before) is not None
    with pytest.raises(SettingError, match=rf"^{re.escape(key)}: expected .*, as in the checkpoint, found"):
        place.prepare(**now)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"key": "a"}, {"key": "b", "id": "i"}),
        ({}, {"flink": {"state.backend.type": "hashmap"}}),
        ({"source": KAFKA}, {"source": {**KAFKA, "group": "forebay-p", "start": "latest"}}),
        ({}, {"sink": {"type": "jsonl", "path": "other"}}),
        (topics(labels=False), topics(birth_texts=4, idle_s=60.0)),
        (topics(), {**topics(), "key": "b"}),
        (summary(), summary(gap_s=9.0, step_s=9.0, late="side", allowed_s=9.0, chunk_tokens=300)),
        (summary(window="rolling"), summary(window="rolling", every_s=9.0, size_s=9.0)),
    ],
)
def test_other_settings_are_taken_over(place: Place, before: dict[str, Any], now: dict[str, Any]) -> None:
    place.started(JOB_A, **before)
    place.checkpoint(JOB_A, 1)
    assert place.prepare(**now) is not None


def test_free_settings_do_not_make_a_start_the_first(place: Place) -> None:
    before = fingerprint(place.spec())
    assert changed_traits(place.spec(shards=4), before) == []
    assert changed_traits(place.spec(**KEYED), before) == []
    assert changed_traits(place.spec(**KEYED, shards=4), before) == [("shards", 8, 4)]


def test_state_of_another_pipeline_is_refused(place: Place) -> None:
    state = {"checkpoint": {"dir": ".forebay/p/checkpoints"}}
    place.started(JOB_A, **state)
    place.checkpoint(JOB_A, 1)
    with pytest.raises(
        SettingError, match=r"^name: the state in .* is that of pipeline 'p', found 'q': keep"
    ):
        place.prepare(**state, name="q")


KEYED = {"ordering": "key", "key": "{{ user }}"}


def test_newly_ordered_pipeline_keeps_its_shards(place: Place) -> None:
    """Requests in flight are in the previous shards: an event of their key in another shard would overtake
    them.
    """
    place.started(JOB_A)
    place.checkpoint(JOB_A, 1)
    assert place.prepare(**KEYED) is not None
    with pytest.raises(SettingError, match="shards: expected 8, as in the checkpoint, found 4"):
        place.prepare(**KEYED, shards=4)
    assert place.prepare(shards=4) is not None, "without order, shards may change"
    costs = {"prices": {"*": {"prompt": 1, "completion": 1}}, "budget": {"per_key_per_day": 1}, "key": "k"}
    with pytest.raises(SettingError, match="shards: expected 8, as in the checkpoint, found 4"):
        place.prepare(**costs, shards=4)
    place.started(JOB_A, **KEYED)
    assert place.prepare() is not None
    assert place.prepare(shards=4) is not None


def test_shards_changed_before_they_are_bound_have_a_way_back(place: Place) -> None:
    place.started(JOB_A)
    place.checkpoint(JOB_A, 1)

    def resume(**changes: Any) -> None:
        assert place.prepare(**changes) is not None
        spec = place.spec(**changes)
        place.write(traits=traits_to_record(spec, place.state), settings={"shards": spec.shards})

    resume(shards=16)
    resume(shards=4)
    with pytest.raises(SettingError, match="shards: expected 8, as in the checkpoint, found 4"):
        place.prepare(**KEYED, shards=4)
    with pytest.raises(SettingError, match=r"the last run had 4, .* run it with shards: 8 and without"):
        place.prepare(**KEYED)
    resume()
    resume(**KEYED)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def test_orphaned_jvm_is_ended_before_a_resume(place: Place, sleeper: subprocess.Popen[bytes]) -> None:
    born_s = birth_s(sleeper.pid)
    assert born_s is not None
    end_orphan(place.store, RunState(jvm=(sleeper.pid, born_s), jvm_space=pid_space()))
    assert sleeper.wait(180) == -9


def test_other_process_with_the_jvms_pid_is_left_alone(
    place: Place, sleeper: subprocess.Popen[bytes]
) -> None:
    born_s = birth_s(sleeper.pid)
    assert born_s is not None
    end_orphan(place.store, RunState(jvm=(sleeper.pid, born_s - 100), jvm_space=pid_space()))
    # In another container, or before the machine was started again, it was another process.
    end_orphan(place.store, RunState(jvm=(sleeper.pid, born_s), jvm_space="elsewhere"))
    assert sleeper.poll() is None


def test_job_on_a_silent_cluster_may_still_run(place: Place) -> None:
    place.write(job=JOB_A, cluster="127.0.0.1:9")
    with pytest.raises(SettingError, match='make sure that it has ended, and write "cluster": null into'):
        end_orphan(place.store, place.state)
    place.write(cluster=None)
    assert end_orphan(place.store, place.state).job == JOB_A


def jobs(place: Place) -> set[str]:
    return {path.name[0] for path in place.home.iterdir() if path.is_dir()}


def test_older_jobs_are_deleted_after_the_first_checkpoint(place: Place) -> None:
    place.checkpoint(JOB_A, 10)
    restored = place.checkpoint(JOB_B, 20)
    (place.home / "elsewhere").mkdir()
    place.started(JOB_C, restored)
    tidy = CheckpointCleaner(place.store, JOB_C, restored)
    (place.home / JOB_C / "chk-21").mkdir(parents=True)
    state = tidy(place.state, 76)
    assert (jobs(place), state.completed) == ({"a", "b", "c", "e"}, None)
    place.checkpoint(JOB_C, 21)
    state = tidy(state, 77)
    assert jobs(place) == {"b", "c", "e"}
    assert state.completed == Completed(number=21, triggered_ms=77, files=1, bytes=16)
    place.checkpoint(JOB_C, 22)
    assert tidy(state, 77) is state, "no look at the files before Flink reports another checkpoint"
    assert tidy(state, 78).completed.number == place.state.completed.number == 22  # type: ignore[union-attr]


def test_full_disk_keeps_the_existing_record(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(home: Path, state: RunState) -> None:
        raise OSError(28, "No space left on device")

    place.checkpoint(JOB_A, 3)
    place.started(JOB_B)
    place.checkpoint(JOB_B, 4)
    tidy, before = CheckpointCleaner(place.store, JOB_B, None), place.state
    with monkeypatch.context() as patch:
        patch.setattr("forebay.pipeline.state_store.write_state", full)
        assert tidy(before, 1) == before
    assert jobs(place) == {"a", "b"}
    assert tidy(before, 1).completed is not None
    assert jobs(place) == {"b"}


def test_run_from_the_beginning_needs_no_other_job(place: Place) -> None:
    (place.home / JOB_A).mkdir()
    place.started(JOB_B)
    place.checkpoint(JOB_B, 30)
    place.noted(JOB_B)
    assert jobs(place) == {"b"}


def test_newest_logs_stay(tmp_path: Path) -> None:
    clean_logs(tmp_path / "none")
    for number in range(KEPT_LOGS + 3):
        log = tmp_path / f"flink-jvm-{number}.err"
        log.touch()
        os.utime(log, (number, number))
    (tmp_path / "mine").touch()
    clean_logs(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == KEPT_LOGS + 1
    assert {"mine", f"flink-jvm-{KEPT_LOGS + 2}.err"} <= left
    assert "flink-jvm-2.err" not in left
