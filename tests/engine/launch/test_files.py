from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay.engine.launch import files
from forebay.engine.launch.files import locked, read_stamp, write_atomic, write_stamp


def test_a_stamp_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_stamp(tmp_path / "deep" / "stamp.json", {"recipe": "1"})
    assert read_stamp(tmp_path / "deep" / "stamp.json") == {"recipe": "1"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b'{"a": "' + b"x" * 2**20 + b'"}'])
def test_what_is_no_stamp_reads_as_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "stamp.json").write_bytes(content)
    assert read_stamp(tmp_path / "stamp.json") == {}
    assert read_stamp(tmp_path / "missing.json") == {}


def test_a_failed_write_leaves_the_old_content_and_no_scrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomic(tmp_path / "file", b"old")

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_lock_waits_for_its_holder_and_for_the_child_that_was_given_it(tmp_path: Path) -> None:
    path, waited = tmp_path / "lock", []
    with locked(path) as descriptor:
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(descriptor,)
        )
    assert child.stdin is not None

    @contextmanager
    def let_the_child_end() -> Iterator[None]:
        waited.append(child.poll())
        child.stdin.close()  # type: ignore[union-attr]
        yield
        waited.append("done")

    with locked(path, let_the_child_end):
        assert waited == [None, "done"]
    child.wait()
    with locked(path, lambda: pytest.fail("nobody holds the lock")):
        pass
