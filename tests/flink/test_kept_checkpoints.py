"""Checkpoints that are kept after Flink deletes them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.harness.operators import complete_checkpoint

from forebay.flink.checkpoints import KeptCheckpoints, check_readable, newest_of_job


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
