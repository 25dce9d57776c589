"""Finding the newest complete checkpoint on disk, and checkpoints that outlive Flink's delete."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.operators import complete_checkpoint

from forebay.errors import SettingError
from forebay.flink.checkpoints import (
    HEADER,
    MARK,
    NEWEST_VERSION,
    Contents,
    KeptCheckpoints,
    check_readable,
    checkpoints_of,
    contents,
    newest_checkpoint,
    newest_of_job,
)


def at(checkpoint: Path, written_s: int) -> Path:
    os.utime(checkpoint / "_metadata", (written_s, written_s))
    return checkpoint


def test_no_checkpoint_without_a_complete_one(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none") is None
    assert newest_checkpoint(tmp_path) is None
    (tmp_path / "job" / "chk-11").mkdir(parents=True)
    (tmp_path / "job" / "shared").mkdir()
    (tmp_path / "lock").touch()
    assert newest_checkpoint(tmp_path) is None
    assert newest_of_job(tmp_path / "job") is None


def test_newest_is_by_number_not_time(tmp_path: Path) -> None:
    """The clock was set back while the job ran, or the folder was copied without times."""
    at(complete_checkpoint(tmp_path / "job", 9), 2000)
    newest = at(complete_checkpoint(tmp_path / "job", 10), 1000)
    assert newest_checkpoint(tmp_path) == newest
    assert [found.number for found in checkpoints_of(tmp_path / "job")] == [10, 9]


def test_restored_job_continues_numbers(tmp_path: Path) -> None:
    at(complete_checkpoint(tmp_path / "b", 41), 1000)
    newest = at(complete_checkpoint(tmp_path / "a", 42), 1000)
    assert newest_checkpoint(tmp_path) == newest


def test_drain_savepoint_contains_its_number(tmp_path: Path) -> None:
    complete_checkpoint(tmp_path / "job", 41)
    drained = complete_checkpoint(tmp_path / "job", 43, name="savepoint-735e24-5d4fb8e8f7a2")
    assert newest_checkpoint(tmp_path) == drained
    assert newest_of_job(tmp_path / "job").name == "job/savepoint-735e24-5d4fb8e8f7a2"  # type: ignore[union-attr]
    newest = complete_checkpoint(tmp_path / "job", 44)
    assert newest_checkpoint(tmp_path) == newest


def test_unrelated_jobs_are_ambiguous(tmp_path: Path) -> None:
    """One was started from the beginning, or the clock was set: either may be the one to resume."""
    at(complete_checkpoint(tmp_path / "old", 900), 1000)
    at(complete_checkpoint(tmp_path / "new", 3), 2000)
    with pytest.raises(SettingError, match=r"old/chk-900 has the highest number, and new/chk-3 was written"):
        newest_checkpoint(tmp_path)
    shutil.rmtree(tmp_path / "old")
    assert newest_checkpoint(tmp_path) == tmp_path / "new" / "chk-3"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is cut off: it has 0 bytes"),
        (HEADER.pack(MARK, 6, 41)[:-1], "is cut off: it has 15 bytes"),
        (b"PK\x03\x04" + bytes(20), "is not a Flink checkpoint: it begins with 504b0304"),
        (HEADER.pack(MARK, NEWEST_VERSION + 1, 41), "was written by a newer Flink, in format 7; this one"),
    ],
)
def test_unreadable_checkpoint_is_not_skipped(tmp_path: Path, data: bytes, said: str) -> None:
    """An older one would duplicate results committed since."""
    complete_checkpoint(tmp_path / "job", 40)
    newest = complete_checkpoint(tmp_path / "job", 41)
    (newest / "_metadata").write_bytes(data)
    with pytest.raises(SettingError, match=said):
        newest_checkpoint(tmp_path)


@given(st.binary(max_size=64))
def test_reader_survives_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "_metadata").write_bytes(data)
    with suppress(SettingError):
        assert check_readable(folder) >= 0


@pytest.mark.heavy
def test_checkpoints_may_vanish_during_a_look(tmp_path: Path) -> None:
    """Flink deletes checkpoints that newer ones replace."""
    numbers = range(1, 400)

    def run() -> None:
        for number in numbers:
            complete_checkpoint(tmp_path / "job", number)
            shutil.rmtree(tmp_path / "job" / f"chk-{number - 2}", ignore_errors=True)

    complete_checkpoint(tmp_path / "job", 0)
    job = threading.Thread(target=run)
    job.start()
    seen = [0]
    while job.is_alive():
        newest = newest_checkpoint(tmp_path)
        assert newest is not None
        seen.append(int(newest.name.removeprefix("chk-")))
    job.join()
    assert seen == sorted(seen)
    assert newest_checkpoint(tmp_path) == tmp_path / "job" / f"chk-{numbers[-1]}"


def test_checkpoint_contents(tmp_path: Path) -> None:
    checkpoint = complete_checkpoint(tmp_path / "job", 1)
    (checkpoint / "state").write_bytes(bytes(100))
    assert contents(checkpoint) == Contents(2, HEADER.size + 100)
    assert contents(tmp_path / "none") == Contents(0, 0)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / ("a" * 32)


def test_kept_checkpoint_survives_flinks_delete(job: Path) -> None:
    kept = KeptCheckpoints(job)
    for number in (4, 5, 6):
        path = complete_checkpoint(job, number)
        (path / "state").write_bytes(b"%d" % number)
        kept.keep()
        shutil.rmtree(path)
    assert newest_of_job(job) is None, "what is kept is not resumed by mistake"
    back = kept.bring_back(5)
    assert back == newest_of_job(job)
    assert back is not None
    assert (back.number, check_readable(back.path), (back.path / "state").read_bytes()) == (5, 5, b"5")


def test_unneeded_checkpoints_are_deleted(job: Path) -> None:
    kept = KeptCheckpoints(job)
    for number in (4, 5, 7):
        complete_checkpoint(job, number)
    kept.keep()
    kept.drop_before(6)
    assert kept.bring_back(4) is None
    assert sorted(path.name for path in (job / "kept").iterdir()) == ["chk-5", "chk-7"]


def test_incomplete_checkpoints_are_not_kept(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*paths: object) -> None:
        raise OSError("no hard links here")

    complete_checkpoint(job, 1)
    (job / "shared").mkdir()
    (job / "shared" / "file").write_bytes(b"of several checkpoints")
    KeptCheckpoints(job).keep()
    assert KeptCheckpoints(job).bring_back(1) is None
    (job / "shared" / "file").unlink()
    monkeypatch.setattr(os, "link", no_links)
    KeptCheckpoints(job).keep()
    assert KeptCheckpoints(job).bring_back(1) is None
    monkeypatch.undo()
    KeptCheckpoints(job).keep()
    assert KeptCheckpoints(job).bring_back(1) is not None
