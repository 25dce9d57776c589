from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.clients.s3.client import S3Client
from forebay.clients.s3.location import S3Path
from forebay.connectors.files import sink
from forebay.connectors.files.sink import GrowingFiles, GrowingSinks, Part, committed_parts, read_jsonl_sink
from forebay.errors import ResultsLost
from forebay.files import try_lock


def test_only_committed_files_are_read_in_the_order_written(tmp_path: Path) -> None:
    for name, text, written_s in (
        ("part-a-b-10.jsonl", "4\n5\n", 3),
        ("part-a-b-2.jsonl", "2\n3\n", 3),
        ("part-c-0.jsonl", "1\n", 2),
        ("part-0-0.jsonl", "6\n", 4),
        (".part-c-1.jsonl.inprogress.xyz", "no\n", 1),
        ("part-x.jsonl", "no\n", 1),
        ("other.jsonl", "no\n", 1),
    ):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (written_s, written_s))
    assert [int(line) for line in read_jsonl_sink(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert len(committed_parts(tmp_path)) == 4
    assert committed_parts(tmp_path / "none") == []


def test_lines_after_an_offset_are_equal_in_folder_and_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"one\n\nthree\n"
    (tmp_path / "part").write_bytes(content)
    monkeypatch.setattr(S3Client, "lines", lambda self, key: iter(content.splitlines()))
    for begin in range(len(content) + 1):
        file, stored = (Part(place, "part", 0, len(content)) for place in (tmp_path, S3Path("b", "k")))
        assert list(stored.lines(begin)) == list(file.lines(begin))


def commit(folder: Path, number: int, text: bytes, job: str = "0a", at_s: int = 0) -> None:
    """Let a file appear as Flink's sink commits one."""
    path = folder / f".new-{job}-1c-2d-{number}.jsonl"
    hidden = folder / f".{path.name}.inprogress.3e"
    hidden.write_bytes(text)
    os.utime(hidden, (at_s, at_s or number))
    hidden.rename(path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


class Killed(BaseException):
    pass


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill the process before change number `step` of the file system; a write may get half of its bytes."""
    left = [step]

    def before(change: Any) -> Any:
        def changed(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return change(*args, **options)

        return changed

    def copy(lines: Any, file: Any, size: int) -> None:
        data = lines.read()
        left[0] -= 1
        if left[0] < 0:
            file.write(data[: len(data) // 2])
            file.flush()
            raise Killed
        file.write(data)

    with monkeypatch.context() as patched:
        for name in ("rename", "unlink"):
            patched.setattr(Path, name, before(getattr(Path, name)))
        for name in ("open", "fsync", "utime"):
            patched.setattr(sink.os, name, before(getattr(os, name)))
        patched.setattr(sink.shutil, "copyfileobj", copy)
        yield


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=3), min_size=1, max_size=5),
    st.lists(st.integers(0, 25), max_size=4),
    st.integers(1, 400),
)
def test_kills_at_any_step_lose_and_duplicate_nothing(
    sizes: list[list[int]], kills: list[int], most_bytes: int
) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as monkeypatch:
        folder = Path(name)
        monkeypatch.setattr(sink, "MAX_BYTES", most_bytes)
        expected: list[bytes] = []
        seen, number = b"", 0
        for of_checkpoint in sizes:
            for size in of_checkpoint:
                lines = [b"%d %s" % (number, b"x" * size), b"%d" % number]
                commit(folder, number, b"".join(line + b"\n" for line in lines))
                expected += lines
                number += 1
            for step in kills:
                with killed_at(step, monkeypatch), suppress(Killed):
                    GrowingFiles(folder).move()
                # What a reader has seen stays as it is.
                now = b"".join(path.read_bytes() for path in sorted(folder.glob("part-0a-0.jsonl")))
                assert now.startswith(seen)
                seen = now
        GrowingFiles(folder).move()
        assert list(read_jsonl_sink(folder)) == expected
        assert all(each.startswith("part-0a-") for each in names(folder))


def test_lines_of_all_checkpoints_are_in_one_file(tmp_path: Path) -> None:
    for number in range(12):
        commit(tmp_path, number, b"%d\n" % number)
        GrowingFiles(tmp_path).move()
    assert names(tmp_path) == ["part-0a-0.jsonl"]
    assert (tmp_path / "part-0a-0.jsonl").read_bytes() == b"".join(b"%d\n" % n for n in range(12))


def test_each_job_has_a_file_and_large_ones_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "MAX_BYTES", 4)
    commit(tmp_path, 0, b"1\n2\n")
    commit(tmp_path, 1, b"3\n")
    commit(tmp_path, 2, b"4\n", job="0b")
    GrowingFiles(tmp_path).move()
    assert names(tmp_path) == ["part-0a-0.jsonl", "part-0a-1.jsonl", "part-0b-0.jsonl"]


def test_a_file_whose_predecessors_were_removed_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "MAX_BYTES", 4)
    for number in range(5):
        commit(tmp_path, number, b"%d\n" % number)
        GrowingFiles(tmp_path).move()
    for number in range(2):
        (tmp_path / f"part-0a-{number}.jsonl").unlink()
    commit(tmp_path, 5, b"5\n")
    GrowingFiles(tmp_path).move()
    assert list(read_jsonl_sink(tmp_path)) == [b"4", b"5"]
    assert names(tmp_path) == ["part-0a-2.jsonl"]


@given(st.sampled_from([None, b"", b"0\n"]), st.lists(st.integers(0, 25), max_size=4))
def test_no_gap_after_a_reader_removed_or_emptied_a_file(left: bytes | None, kills: list[int]) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as monkeypatch:
        folder, file = Path(name), Path(name) / "part-0a-0.jsonl"
        # The run was killed when these lines had their offsets after "0" and "1".
        (folder / ".at-0-4.new-0a-1c-2d-2.jsonl").write_bytes(b"2\n")
        (folder / ".at-0-6.new-0a-1c-2d-3.jsonl").write_bytes(b"3\n")
        commit(folder, 4, b"4\n")
        if left is not None:
            file.write_bytes(left)
        for step in kills:
            with killed_at(step, monkeypatch), suppress(Killed):
                GrowingFiles(folder).move()
        GrowingFiles(folder).move()
        assert file.read_bytes() == (left or b"") + b"2\n3\n4\n"


def test_lines_stay_if_a_reader_removes_the_file_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "part-0a-0.jsonl"
    fsync, removed = os.fsync, []

    def remove_once(descriptor: int) -> None:
        fsync(descriptor)
        if file.exists() and file.stat().st_size and not removed:
            removed.append(file.read_bytes())
            file.unlink()

    monkeypatch.setattr(os, "fsync", remove_once)
    commit(tmp_path, 1, b"1\n")
    with pytest.raises(FileNotFoundError, match="was removed while lines were added to it"):
        GrowingFiles(tmp_path).move()
    assert removed == [b"1\n"]
    GrowingFiles(tmp_path).move()
    assert file.read_bytes() == b"1\n"


def test_an_earlier_folder_of_results_may_be_removed(tmp_path: Path) -> None:
    now, before = tmp_path / "now", tmp_path / "before"
    now.mkdir()
    before.mkdir()
    commit(before, 1, b"1\n")
    with closing(GrowingSinks([now], [before])) as sinks:
        assert (before / "part-0a-0.jsonl").read_bytes() == b"1\n"
        shutil.rmtree(before)
        sinks.check_held()


@pytest.mark.parametrize("then", ["removed", "replaced", "a file"])
def test_a_folder_that_is_removed_or_replaced_is_an_error(tmp_path: Path, then: str) -> None:
    folder = tmp_path / "out"
    sinks = GrowingSinks([folder])
    folder.mkdir()
    with closing(sinks):
        sinks.check_held()
        sinks.check_held()
        folder.rename(tmp_path / "old")
        if then != "removed":
            folder.mkdir() if then == "replaced" else folder.write_text("")
        with pytest.raises(ResultsLost, match="was removed or replaced during the run"):
            sinks.check_held()
        if then != "removed":
            folder.rmdir() if then == "replaced" else folder.unlink()
        (tmp_path / "old").rename(folder)
        sinks.check_held()


def test_file_has_the_time_of_its_last_line(tmp_path: Path) -> None:
    commit(tmp_path, 0, b"1\n", at_s=10)
    commit(tmp_path, 1, b"2\n", at_s=20)
    GrowingFiles(tmp_path).move()
    assert [part.written_ns for part in committed_parts(tmp_path)] == [20 * 10**9]


def test_uncommitted_files_and_those_of_others_stay(tmp_path: Path) -> None:
    kept = ("..new-0a-1c-2d-0.jsonl.inprogress.3e", ".part-0a-1c-0.jsonl", "part-0a-1c-1.jsonl", "note.txt")
    for name in kept:
        (tmp_path / name).write_text("1\n")
    GrowingFiles(tmp_path).move()
    assert names(tmp_path) == sorted(kept)


def test_folder_that_another_process_moves_is_left_alone(tmp_path: Path) -> None:
    commit(tmp_path, 0, b"1\n")
    lock = try_lock(tmp_path / ".lock")
    assert lock is not None
    GrowingFiles(tmp_path).move()
    assert not list(tmp_path.glob("part-*"))
    os.close(lock)
    GrowingFiles(tmp_path).move()
    assert names(tmp_path) == ["part-0a-0.jsonl"]


def test_failure_is_reported_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit(tmp_path, 0, b"1\n")

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sink, "POLL_S", 1000)
    with monkeypatch.context() as patched:
        patched.setattr(sink.shutil, "copyfileobj", full)
        sinks = GrowingSinks([tmp_path, tmp_path / "missing"])
        sinks.move()
    assert caplog.text.count("No space left on device") == 1
    sinks.close()
    assert list(read_jsonl_sink(tmp_path)) == [b"1"]


def test_clock_that_is_set_back_does_not_change_a_writers_order(tmp_path: Path) -> None:
    for number, at_s in enumerate((20, 30, 10)):
        commit(tmp_path, number, b"%d\n" % number, at_s=at_s)
    GrowingFiles(tmp_path).move()
    assert list(read_jsonl_sink(tmp_path)) == [b"0", b"1", b"2"]


def test_last_move_waits_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "POLL_S", 1000)
    commit(tmp_path, 0, b"1\n")
    lock = try_lock(tmp_path / ".lock")
    assert lock is not None
    sinks = GrowingSinks([tmp_path])
    monkeypatch.setattr(sink, "FINISH_TRIES", 3)
    waits: list[float] = []
    monkeypatch.setattr(sink.time, "sleep", waits.append)
    assert "another process holds .lock" in sinks.finish()
    monkeypatch.setattr(sink.time, "sleep", lambda _: os.close(lock))
    assert sinks.finish() == ""
    assert list(read_jsonl_sink(tmp_path)) == [b"1"]
    monkeypatch.setattr(sink.time, "sleep", waits.append)
    sinks.close()


def test_lines_after_a_half_written_one_begin_at_the_next(tmp_path: Path) -> None:
    (tmp_path / "part-0a-0.jsonl").write_bytes(b"one\ntwo\nthree\n")
    (part,) = committed_parts(tmp_path)
    assert list(part.lines(4)) == [b"two", b"three"]
    assert list(part.lines(6)) == [b"three"]
