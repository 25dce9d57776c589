from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.harness.http_server import QuietHandler, serving

import forebay as fb
from forebay.api import environment
from forebay.api.environment import (
    check_none_runs,
    delete_others,
    forget_finished,
    hold_folder,
    resumed_checkpoint,
)
from forebay.errors import SettingError
from forebay.flink.checkpoints import END_MARK, HEADER, LOCK, MARK
from forebay.flink.environment import FlinkConfig

HOLD = (
    "import pathlib, sys; from forebay.api.environment import hold_folder;"
    "print(hold_folder(pathlib.Path(sys.argv[1])), flush=True); sys.stdin.read()"
)
FIRST, SECOND, THIRD = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process with the folder `state`, left by a process with a longer number."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / LOCK).write_text(f"{10**15}\n")
    command = [sys.executable, "-c", HOLD, str(tmp_path / "state")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        yield process
        process.kill()


@pytest.mark.heavy
def test_second_process_is_rejected_until_the_first_has_ended(
    other: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    words = rf"state is in use by another process \({other.pid}\).*write all results twice"
    with pytest.raises(SettingError, match=words):
        hold_folder(tmp_path / "state")
    with pytest.raises(SettingError, match="in use"):
        hold_folder(tmp_path / "x" / ".." / "state")
    assert hold_folder(tmp_path / "another")
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert hold_folder(tmp_path / "state")


def test_same_process_may_lock_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hold_folder(tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    assert not hold_folder(Path("state"))


def test_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"checkpoints: .*file/state cannot be used: Not a directory"):
        hold_folder(tmp_path / "file" / "state")


def checkpoint(folder: Path, job: str, number: int) -> Path:
    path = folder / job / f"chk-{number}"
    path.mkdir(parents=True)
    (path / "_metadata").write_bytes(HEADER.pack(MARK, 4, number))
    return path


def test_leftovers_of_earlier_jobs_are_removed_and_nothing_else(tmp_path: Path) -> None:
    checkpoint(tmp_path, FIRST, 3)
    (tmp_path / THIRD).mkdir()
    (tmp_path / "notes").mkdir()
    newest = checkpoint(tmp_path, SECOND, 7)
    delete_others(tmp_path, newest)
    assert {path.name for path in tmp_path.iterdir()} == {SECOND, "notes"}
    assert (newest / "_metadata").is_file()


@pytest.mark.parametrize(
    ("options", "left", "resumed"),
    [
        ({}, {SECOND}, SECOND),
        ({"resume": False}, {FIRST, SECOND}, None),
        ({"cluster": "host:1"}, {FIRST, SECOND}, SECOND),
    ],
    ids=["resumes", "starts anew", "on a cluster"],
)
def test_environment_resumes_and_deletes_unneeded_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, left: set[str], resumed: str | None
) -> None:
    made: list[FlinkConfig] = []
    monkeypatch.setattr(environment, "flink_environment", made.append)
    monkeypatch.setattr(environment, "ProgramEnvironment", lambda env, *more: env)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
    state = tmp_path / "state"
    os.utime(checkpoint(state, FIRST, 3) / "_metadata", (1, 1))
    checkpoint(state, SECOND, 7)

    def jobs() -> set[str]:
        return {path.name for path in state.iterdir() if path.name != LOCK}

    environment.environment(checkpoints=state, log_every_s=None, **options)
    restored = made[0].restore_from
    assert (restored and restored.parent.name) == resumed
    assert jobs() == left
    # Jobs of this process may still run.
    (state / THIRD).mkdir()
    environment.environment(checkpoints=state, log_every_s=None, **options)
    assert jobs() == {*left, THIRD}


def test_finished_job_is_not_resumed_from_an_older_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older = checkpoint(tmp_path, FIRST, 3)
    (tmp_path / SECOND).mkdir()
    forget_finished(tmp_path)
    assert resumed_checkpoint(tmp_path) == older
    # The second job has resumed from the first one's checkpoint, and continues.
    (tmp_path / SECOND / END_MARK).touch()
    newest = checkpoint(tmp_path, SECOND, 4)
    forget_finished(tmp_path)
    assert resumed_checkpoint(tmp_path) == newest
    # Flink has deleted its checkpoints.
    shutil.rmtree(newest)
    assert not caplog.records
    forget_finished(tmp_path)
    assert resumed_checkpoint(tmp_path) is None
    assert "has finished: the job starts from the beginning" in caplog.text


@pytest.mark.parametrize("cleared", [True, False], ids=["cleared away", "left there"])
def test_job_after_a_finished_one_is_resumed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cleared: bool
) -> None:
    (tmp_path / FIRST).mkdir()
    (tmp_path / FIRST / END_MARK).touch()
    if cleared:
        forget_finished(tmp_path, start_over=False)
        assert not (tmp_path / FIRST).exists()
    else:
        os.utime(tmp_path / FIRST / END_MARK, (1, 1))
    newest = checkpoint(tmp_path, SECOND, 1)
    forget_finished(tmp_path)
    assert resumed_checkpoint(tmp_path) == newest
    assert not caplog.records


def test_checkpoint_to_resume_from_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forebay")
    assert resumed_checkpoint(tmp_path) is None
    newest = checkpoint(tmp_path, FIRST, 3)
    assert resumed_checkpoint(tmp_path) == newest
    assert [record.getMessage() for record in caplog.records] == [
        f"no checkpoint in {tmp_path}: the job starts from the beginning",
        f"the job resumes from checkpoint {newest}",
    ]


def importing_pyflink(before: str = "") -> str:
    code = (
        f"import logging; logging.basicConfig(level=logging.INFO); {before}\n"
        "from forebay.api.environment import mute_pyflink; mute_pyflink()\n"
        "from forebay.flink.thread_mode import import_functions; import_functions()"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stderr


@pytest.mark.heavy
def test_pyflink_warnings_are_hidden_by_default() -> None:
    text = importing_pyflink()
    assert "GCSFileSystem" not in text
    assert "PYFLINK_CYTHON" not in text
    asked = "logging.getLogger('pyflink.fn_execution').setLevel(logging.INFO)"
    assert "PYFLINK_CYTHON" in importing_pyflink(asked)


class FlinkOfJobs(QuietHandler):
    def do_GET(self) -> None:
        jobs = [{"id": FIRST, "status": "RUNNING"}, {"id": SECOND, "status": "CANCELED"}]
        self.answer(orjson.dumps({"jobs": jobs}))


@pytest.fixture
def cluster() -> Iterator[str]:
    with serving(FlinkOfJobs) as url:
        yield url.removeprefix("http://")


@pytest.mark.heavy
def test_job_still_running_on_the_cluster_keeps_its_folder(cluster: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "running", FIRST, 3)
    checkpoint(tmp_path / "running", SECOND, 2)
    words = rf"job {FIRST}, .*still runs at {cluster}.*Cancel it: .*/jobs/{FIRST}\?mode=cancel"
    with pytest.raises(SettingError, match=words):
        fb.environment(checkpoints=tmp_path / "running", cluster=cluster)
    checkpoint(tmp_path / "ended", SECOND, 2)
    check_none_runs(cluster, tmp_path / "ended")


def test_silent_cluster_gives_no_job_state(tmp_path: Path) -> None:
    checkpoint(tmp_path, FIRST, 3)
    check_none_runs("127.0.0.1:9", tmp_path)
