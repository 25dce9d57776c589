"""Waiting for new files: at once by the kernel, by polls if it cannot watch."""

from __future__ import annotations

import os
import resource
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from forebay.connectors.files import sink
from forebay.connectors.files.changes import FolderChanges
from forebay.connectors.files.sink import GrowingSinks
from forebay.testing import wait_until

LONG_S = 600.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


def test_a_new_file_ends_the_wait(tmp_path: Path) -> None:
    with closing(FolderChanges([tmp_path])) as changes:
        assert changes.wait(LONG_S, poll_s=LONG_S), "what was there before counts as new"
        assert not changes.wait(0.0, poll_s=LONG_S)
        hidden = tmp_path / ".part"
        hidden.touch()
        assert changes.wait(LONG_S, poll_s=LONG_S)
        hidden.rename(tmp_path / "part")
        assert changes.wait(LONG_S, poll_s=LONG_S)
        (tmp_path / "part").unlink()
        assert not changes.wait(0.0, poll_s=LONG_S), "nothing has to be moved"


def test_a_folder_that_is_missing_or_replaced_is_watched_once_it_exists(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with closing(FolderChanges([folder])) as changes:
        assert not changes.wait(LONG_S, poll_s=0.0)
        for _ in range(2):
            folder.mkdir()
            assert changes.wait(LONG_S, poll_s=LONG_S)
            folder.rename(tmp_path / f"before-{folder.stat().st_ino}")


def test_without_the_kernels_help_it_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLibrary:
        def __init__(self, name: object) -> None:
            pass

    monkeypatch.setattr("ctypes.CDLL", NoLibrary)
    with closing(FolderChanges([tmp_path])) as changes:
        assert not changes.wait(LONG_S, poll_s=0.0)


def test_results_are_moved_without_a_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "REST_S", LONG_S)
    looked, move = threading.Semaphore(0), sink.GrowingFiles.move

    def counted(files: sink.GrowingFiles) -> bool:
        looked.release()
        return move(files)

    monkeypatch.setattr(sink.GrowingFiles, "move", counted)
    sinks = GrowingSinks([tmp_path])
    # At the start, and once the folder is watched.
    assert looked.acquire(timeout=LONG_S)
    assert looked.acquire(timeout=LONG_S)
    committed = tmp_path / ".new-0a-0-0.jsonl"
    (tmp_path / ".writing").write_bytes(b"1\n")
    (tmp_path / ".writing").rename(committed)
    wait_until(lambda: [each.name for each in tmp_path.glob("*.jsonl")] == ["part-0a-0.jsonl"])
    sinks.close()


def test_nothing_is_moved_after_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "REST_S", LONG_S)
    monkeypatch.setattr(sink, "POLL_S", LONG_S)
    before = set(threading.enumerate())
    GrowingSinks([tmp_path]).close()
    assert set(threading.enumerate()) <= before


def test_stop_ends_a_wait(tmp_path: Path) -> None:
    with closing(FolderChanges([tmp_path])) as changes:
        assert changes.wait(LONG_S, poll_s=LONG_S)
        changes.stop()
        assert not changes.wait(LONG_S, poll_s=LONG_S)


def test_more_than_a_thousand_files_may_be_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    opened = []
    try:
        while not opened or opened[-1] < 1024:
            opened.append(os.open(tmp_path, os.O_RDONLY))
        with closing(FolderChanges([tmp_path])) as changes:
            assert changes.wait(0.0, poll_s=0.0)
            assert not changes.wait(0.0, poll_s=0.0)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
