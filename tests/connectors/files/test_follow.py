"""A followed folder without Flink: each line once, whatever happens to its files."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.connectors.files.test_unpack import PACKED, zipped
from tests.harness.clock import ManualClock
from tests.harness.keyed_state import OneKeyContext, Room

from forebay.codec import decode
from forebay.connectors.files import folder as folder_module
from forebay.connectors.files import follow, lines
from forebay.connectors.files.folder import Changes, Known, Stamp
from forebay.connectors.files.follow import SCAN_SHARE, SETTLED_S, FollowFolder, pack_known, unpack_known
from forebay.connectors.files.reader import LineReader
from forebay.connectors.files.unpack import open_file
from forebay.connectors.formats import Format
from forebay.flink.types import END_OF_TIME_MS
from forebay.records import DeadLetter, Event

TEXT = LineReader(Format("text"))
CSV = LineReader(Format("csv"), header=True)


class Run:
    """One run over a folder, from a checkpoint."""

    def __init__(
        self,
        root: Path,
        reader: LineReader = TEXT,
        *,
        states: dict[str, bytes] | None = None,
        room: Room | None = None,
    ) -> None:
        self.clock = ManualClock(0.0)
        self.context = OneKeyContext(states)
        self.function = FollowFolder(root, reader, 1.0, clock=self.clock, sleep=self.clock.pause)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(follow, "output_room", lambda _: room or Room())
            self.function.open(self.context)

    def call(self) -> list[Event | DeadLetter]:
        return [decode(record) for record in self.function.process_element(0, self.context)]

    def all(self, *, after_s: float = 1.0) -> list[Event | DeadLetter]:
        """Records until a call without one, `after_s` later."""
        self.clock.advance(after_s)
        found: list[Event | DeadLetter] = []
        while records := self.call():
            found += records
        return found

    def again(self, reader: LineReader = TEXT) -> Run:
        return Run(self.function._root, reader, states=self.context.states)


def read(run: Run, *, after_s: float = 1.0) -> list[tuple[str | None, bytes]]:
    return [(record.position, record.raw) for record in run.all(after_s=after_s)]


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def replace_file(path: Path, content: bytes) -> None:
    """Like a daily export: another file with the same name."""
    (path.parent / ".new").write_bytes(content)
    os.replace(path.parent / ".new", path)


def test_files_and_lines_are_read_as_they_appear(folder: Path) -> None:
    run = Run(folder)
    assert read(run) == []
    (folder / "b").write_bytes(b"1\n2\n")
    (folder / "a").write_bytes(b"3\n")
    assert read(run) == [("in/a@1", b"3"), ("in/b@1", b"1"), ("in/b@2", b"2")]
    with (folder / "b").open("ab") as file:
        file.write(b"4\n")
    assert read(run) == [("in/b@3", b"4")]
    assert read(run.again()) == []


def slow_disk(run: Run, patch: pytest.MonkeyPatch) -> None:
    """A look at a file takes 10 s, a comparison 100 s."""
    compare = follow.compare

    def is_data(entry: os.DirEntry[str]) -> bool:
        run.clock.advance(10.0)
        return entry.is_file()

    def slow_compare(*args: Any) -> Changes:
        run.clock.advance(100.0)
        return compare(*args)

    patch.setattr(folder_module, "is_data", is_data)
    patch.setattr(follow, "compare", slow_compare)


def test_new_file_is_found_between_scans_of_a_large_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_bytes(b"1\n")
    run = Run(folder)
    slow_disk(run, monkeypatch)
    assert read(run) == [("in/a@1", b"1")]
    next_scan_s = run.function._scan_at_s
    assert next_scan_s == pytest.approx(1.0 + 10.0 / SCAN_SHARE), "without what is done once"
    (folder / "c").write_bytes(b"2\n")
    (folder / "b").write_bytes(b"3\n")
    assert read(run) == [("in/b@1", b"3"), ("in/c@1", b"2")]
    assert run.clock.monotonic_s() < next_scan_s == run.function._scan_at_s
    with (folder / "a").open("ab") as file:
        file.write(b"4\n")
    (folder / "c").rename(folder / "d")
    (folder / "e").write_bytes(b"5\n")
    assert read(run, after_s=next_scan_s) == [("in/a@2", b"4"), ("in/e@1", b"5")]
    assert run.function._scan_at_s > next_scan_s + 100.0 / SCAN_SHARE, "each later comparison counts"
    assert read(run.again()) == []


def test_renamed_file_waits_for_the_next_scan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a").write_bytes(b"1\n2\n")
    run = Run(folder)
    slow_disk(run, monkeypatch)
    assert len(read(run)) == 2
    (folder / "a").rename(folder / "b")
    (folder / "a").write_bytes(b"3\n")
    next_scan_s = run.function._scan_at_s
    assert read(run) == []
    assert run.clock.monotonic_s() < next_scan_s
    assert read(run, after_s=next_scan_s) == [("in/a@2:1", b"3")]


def test_nothing_new_is_read_before_a_scan_succeeds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a file that was renamed during a restart."""
    (folder / "a").write_bytes(b"1\n2\n")
    before = Run(folder)
    assert len(read(before)) == 2
    (folder / "a").rename(folder / "b")
    run = before.again()
    with monkeypatch.context() as patch:

        def fail(entry: os.DirEntry[str]) -> bool:
            run.clock.advance(10.0)
            raise OSError(errno.EIO, os.strerror(errno.EIO), entry.path)

        patch.setattr(folder_module, "is_data", fail)
        assert read(run) == []
    next_scan_s = run.function._scan_at_s
    assert read(run) == []
    assert run.clock.monotonic_s() < next_scan_s
    assert read(run, after_s=next_scan_s) == []


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("content", [b"", b"9\n", b"9\n8\n", b"9\n8\n7\n", b"1\n9\n8\n"])
def test_a_file_that_is_replaced_is_read_as_a_new_one_and_reported(
    folder: Path, caplog: pytest.LogCaptureFixture, content: bytes, in_place: bool, restarted: bool
) -> None:
    (folder / "a").write_bytes(b"1\n2\n")
    run = Run(folder)
    assert read(run) == [("in/a@1", b"1"), ("in/a@2", b"2")]
    if in_place:
        (folder / "a").write_bytes(content)
        later = (folder / "a").stat().st_mtime_ns + 10**9
        os.utime(folder / "a", ns=(later, later))
    else:
        replace_file(folder / "a", content)
    run = run.again() if restarted else run
    assert read(run) == [(f"in/a@2:{n}", line) for n, line in enumerate(content.split(), 1)]
    assert "in/a was replaced after line 2 was read: it is read from its start as a new file" in caplog.text
    assert run.context.counted == 1
    assert read(run.again()) == []


def test_a_file_that_only_grew_is_not_new(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "a").write_bytes(b"1\n2\n")
    run = Run(folder)
    read(run)
    replace_file(folder / "a", b"1\n2\n3\n")
    assert read(run) == [("in/a@3", b"3")]
    replace_file(folder / "a", b"1\n2\n3\n")
    os.utime(folder / "a", ns=(5, 5))
    assert read(run) == []
    shutil.move(folder, folder.parent / "away")
    shutil.copytree(folder.parent / "away", folder)
    assert read(run.again()) == []
    assert "replaced" not in caplog.text


def test_a_rotated_log_is_read_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, numbers = Run(folder), count()
    log, got = folder / "app.log", []
    for _ in range(4):
        for _ in range(3):
            with log.open("ab") as file:
                file.write(b"%d\n" % next(numbers))
            got += read(run)
            run = run.again()
        # The last line before the rotation is not seen in time.
        with log.open("ab") as file:
            file.write(b"%d\n" % next(numbers))
        for number in (2, 1):
            if (folder / f"app.log.{number}").exists():
                os.replace(folder / f"app.log.{number}", folder / f"app.log.{number + 1}")
        os.replace(log, folder / "app.log.1")
    got += read(run)
    assert sorted(int(raw) for _, raw in got) == list(range(16))
    assert len({position for position, _ in got}) == 16
    assert got[3][0] == "in/app.log@2:1"
    assert caplog.text == ""


def test_a_file_replaced_just_after_a_poll_is_not_read_in_the_middle(folder: Path) -> None:
    (folder / "a").write_bytes(b"1\n2\n3\n")
    run = Run(folder, room=Room(False, *[True] * 99))
    assert [record.raw for record in run.call()] == [b"1"]
    run = run.again()
    look = run.function._scan

    def replaced_after_it(now_s: float) -> Iterator[bytes]:
        yield from look(now_s)
        if now_s < 1.0:
            replace_file(folder / "a", b"another, longer file\n")

    run.function._scan = replaced_after_it  # type: ignore[method-assign]
    assert run.call() == []
    letter, record = run.all()
    assert (letter.position, record.position) == ("in/a@2-", "in/a@2:1")
    assert record.raw == b"another, longer file"


def test_unread_rest_of_a_removed_file_is_a_dead_letter(folder: Path) -> None:
    (folder / "a").write_bytes(b"1\n2\n3\n")
    (folder / "b").write_bytes(b"4\n")
    run = Run(folder, room=Room(False, *[True] * 99))
    assert [record.position for record in run.call()] == ["in/a@1"]
    (folder / "a").unlink()
    replace_file(folder / "b", b"5\n")
    run.clock.advance(1.0)
    letter, *rest = run.all()
    assert (letter.position, letter.cause) == ("in/a@2-", "unread_file")
    assert letter.detail == "from line 2 on: the file was removed before it was read to its end"
    assert [(record.position, record.raw) for record in rest] == [("in/b@1", b"5")]


def test_last_line_without_an_end_is_read_once_the_file_is_idle(folder: Path) -> None:
    run = Run(folder)
    (folder / "a").write_bytes(b"1\n2")
    assert read(run) == [("in/a@1", b"1")]
    with (folder / "a").open("ab") as file:
        file.write(b"2\n3")
    assert read(run) == [("in/a@2", b"22")]
    assert read(run, after_s=SETTLED_S - 1.5) == []
    assert read(run, after_s=2.0) == [("in/a@3", b"3")]
    assert read(run, after_s=99.0) == []
    with (folder / "a").open("ab") as file:
        file.write(b"\n4\n")
    assert read(run) == [("in/a@5", b"4")]


def test_no_wait_while_files_are_left_to_read(folder: Path) -> None:
    for name in "abc":
        (folder / name).write_bytes(b"no end")
    run = Run(folder, room=Room(False, False))
    assert [run.call(), run.call()] == [[], []]
    assert run.clock.monotonic_s() == 0.0
    assert run.call() == []
    assert run.clock.monotonic_s() > 0.0


def test_file_that_grows_faster_than_it_is_read_blocks_no_other(folder: Path) -> None:
    for name in "abc":
        (folder / name).write_bytes(b"1\n2\n")
    run = Run(folder, room=Room(*[False] * 100))
    found: list[str | None] = []
    for _ in range(10):
        run.clock.advance(1.0)
        with (folder / "a").open("ab") as file:
            file.write(b"3\n4\n")
        found += [record.position for record in run.call()]
    assert found[:8] == [*(f"in/a@{n}" for n in range(1, 5)), "in/b@1", "in/b@2", "in/c@1", "in/c@2"]
    for _ in range(50):
        found += [record.position for record in run.call()]
    assert found == [*found[:8], *(f"in/a@{n}" for n in range(5, 23))]


def test_files_that_only_got_another_time_are_read_once(folder: Path) -> None:
    for name in "ab":
        (folder / name).write_bytes(b"1\n")
    run = Run(folder)
    assert len(read(run)) == 2
    for name in "ab":
        os.utime(folder / name, ns=(0, 0))
    assert read(run) == []


def test_open_quote_waits_for_the_rest_of_its_file(folder: Path) -> None:
    run = Run(folder, CSV)
    (folder / "a").write_bytes(b'id,text\n1,"open\n2,b\n')
    assert read(run) == []
    with (folder / "a").open("ab") as file:
        file.write(b'end"\n3,"open\n4,c\n')
    assert read(run) == [("in/a@2", b'1,"open\n2,b\nend"')]
    assert read(run, after_s=SETTLED_S + 1) == [("in/a@5", b'3,"open'), ("in/a@6", b"4,c")]


def test_a_drain_reads_everything(folder: Path) -> None:
    (folder / "a").write_bytes(b"1\n2")
    run = Run(folder)
    assert len(run.all()) == 1
    (folder / "b").write_bytes(b"3")
    records = [decode(record) for record in run.function.on_timer(END_OF_TIME_MS, run.context)]
    assert sorted(record.raw for record in records) == [b"2", b"3"]
    assert read(run.again(), after_s=99.0) == []


def test_a_drain_does_not_wait_for_a_writer_to_stop(folder: Path) -> None:
    for name in "ab":
        (folder / name).write_bytes(b"1\n2\n")
    run = Run(folder)
    found: list[str | None] = []
    for record in run.function.on_timer(END_OF_TIME_MS, run.context):
        found.append(decode(record).position)
        assert len(found) < 9
        for name in "ab":
            with (folder / name).open("ab") as file:
                file.write(b"3\n")
    # b had grown by two lines before its turn.
    assert found == ["in/a@1", "in/a@2", *(f"in/b@{n}" for n in range(1, 5))]
    rest = [*(("a", n) for n in range(3, 9)), *(("b", n) for n in range(5, 9))]
    assert read(run.again()) == [(f"in/{name}@{n}", b"3") for name, n in rest]


def test_each_file_has_its_own_header_and_other_columns_are_reported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "a.csv").write_bytes(b"id,text\n1,one\n")
    run = Run(folder, CSV)
    run.all()
    (folder / "0.csv").write_bytes(b"text,id\ntwo,2\n")
    (folder / "c.csv").write_bytes(b"id,body,body\n3,three,x\n")
    run = run.again(CSV)
    with (folder / "a.csv").open("ab") as file:
        file.write(b"4,four\n")
    assert [record.fields for record in run.all()] == [
        {"text": "two", "id": "2"},
        {"id": "4", "text": "four"},
        {"id": "3", "body": "three", "body_2": "x"},
    ]
    assert "in/c.csv: lacks 'text' and has 'body', unlike in/0.csv: was a column renamed?" in caplog.text
    assert "in/c.csv: 2 columns are named 'body'; the later ones are read as 'body_2'" in caplog.text


@pytest.mark.parametrize("packing", list(PACKED))
def test_compressed_files_are_read_once_complete(folder: Path, packing: str) -> None:
    packed, lines = PACKED[packing](b"1\n2\n"), [b"1", b"2"]
    run = Run(folder)
    (folder / "a").write_bytes(packed[:-9])
    got = read(run)
    (folder / "a").write_bytes(packed)
    got += read(run)
    assert [raw for _, raw in got] == lines
    replace_file(folder / "a", PACKED[packing](b"3\n"))
    ((position, raw),) = read(run.again())
    assert raw == b"3"
    assert "@2:1" in str(position)


def test_compressed_file_that_stays_damaged_is_a_dead_letter(folder: Path) -> None:
    run = Run(folder)
    (folder / "a.gz").write_bytes(gzip.compress(b"1\n2\n" * 9999)[:-30])
    (folder / "b").write_bytes(b"3\n")
    got = read(run)
    assert got[-1] == ("in/b@1", b"3")
    (letter,) = run.all(after_s=SETTLED_S)
    assert letter.cause == "unread_file"
    assert letter.position == f"in/a.gz@{len(got)}-"
    assert "Compressed file ended" in letter.detail
    assert read(run, after_s=99.0) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a link away")
def test_link_of_another_user_is_a_dead_letter(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_bytes(b"secret\n")
    for name in ("mine", "theirs"):
        (folder / name).symlink_to(tmp_path / "private")
    os.chown(folder / "theirs", 12345, -1, follow_symlinks=False)
    run = Run(folder)
    assert read(run) == [("in/mine@1", b"secret")]
    (letter,) = run.all(after_s=SETTLED_S)
    assert letter.cause == "unread_file"
    assert "it is a link of user 12345, which is not followed; copy the file" in letter.detail


def test_members_of_an_archive_are_read_in_order(folder: Path) -> None:
    (folder / "a.zip").write_bytes(zipped(y=b"2\n3\n", x=b"1\n"))
    run = Run(folder, room=Room(False, False))
    got = [(record.position, record.raw) for _ in range(2) for record in run.call()]
    got += read(run.again())
    assert got == [("in/a.zip/x@1", b"1"), ("in/a.zip/y@1", b"2"), ("in/a.zip/y@2", b"3")]


def test_absent_folder_is_waited_for(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "a").write_bytes(b"1\n")
    run = Run(folder)
    assert len(read(run)) == 1
    folder.rename(folder.parent / "away")
    assert read(run) == []
    assert read(run) == []
    assert caplog.text.count("cannot be read: No such file or directory; retrying") == 1
    assert run.context.gauge == 1
    (folder.parent / "away").rename(folder)
    (folder / "b").write_bytes(b"2\n")
    assert read(run) == [("in/b@1", b"2")]
    assert run.context.gauge == 0


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_link_that_cannot_be_followed_for_a_moment_is_not_a_removed_file(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (folder / "a").symlink_to(tmp_path / "a")
    run = Run(folder, room=Room(False, *[True] * 99))
    assert [record.position for record in run.call()] == ["in/a@1"]

    class Refused:
        def is_file(self) -> bool:
            raise OSError(number, os.strerror(number), str(folder / "a"))

    with monkeypatch.context() as patched:
        patched.setattr(folder_module, "entries_of", lambda _: iter([("a", Refused())]))
        run.clock.advance(1.0)
        assert [record.position for record in run.call()] == ["in/a@2"]
    assert read(run) == []
    assert f"source file {folder}/a cannot be read: {os.strerror(number)}; make it" in caplog.text


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_file_that_cannot_be_opened_for_a_moment_is_not_another_one(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    renamed: bool,
) -> None:
    (folder / "a").write_bytes(b"1\n")
    run = Run(folder)
    assert read(run) == [("in/a@1", b"1")]
    with (folder / "a").open("ab") as file:
        file.write(b"2\n")
    if renamed:
        (folder / "a").rename(folder / "b")

    def refuse(*_: object, **__: object) -> bool:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(follow, "begins_as_read", refuse)
        run.clock.advance(1.0)
        assert run.call() == []
        run.clock.advance(1.0)
        assert run.call() == []
    assert read(run) == [("in/a@2", b"2")]
    assert caplog.text.count(os.strerror(number)) == 1


def partly_read_and_renamed(folder: Path) -> Run:
    """`a` with three lines, of which one is read, is `b` now."""
    (folder / "a").write_bytes(b"1\n2\n")
    run = Run(folder, room=Room(False, *[True] * 99))
    assert [record.position for record in run.call()] == ["in/a@1"]
    with (folder / "a").open("ab") as file:
        file.write(b"3\n")
    (folder / "a").rename(folder / "b")
    return run


def test_renamed_file_that_cannot_be_read_blocks_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a rotated log that only root may read."""
    run = partly_read_and_renamed(folder)
    (folder / "a").write_bytes(b"4\n")

    def refuse(path: str, member: str | None = None) -> BinaryIO:
        if path.endswith("b"):
            raise PermissionError(errno.EACCES, "no")
        return open_file(path, member)

    with monkeypatch.context() as patched:
        patched.setattr(lines, "open_file", refuse)
        assert read(run) == [("in/a@2:1", b"4")]
        assert read(run) == []
        run = run.again()
        assert read(run) == []
    assert read(run) == [("in/a@2", b"2"), ("in/a@3", b"3")]


def test_renamed_file_that_stays_unreadable_is_a_dead_letter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = partly_read_and_renamed(folder)

    def refuse(path: str, member: str | None = None) -> BinaryIO:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(lines, "open_file", refuse)
    assert read(run) == []
    (letter,) = run.all(after_s=SETTLED_S)
    assert isinstance(letter, DeadLetter)
    assert (letter.cause, letter.position) == ("unread_file", "in/a@2-")
    assert read(run, after_s=SETTLED_S) == []


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def no_access(path: str, member: str | None = None) -> BinaryIO:
    raise PermissionError(errno.EACCES, "no")


@pytest.mark.parametrize("change", ["append", "rename", "replace", "truncate", "return"])
@pytest.mark.parametrize("stays", [False, True])
def test_unreadable_change_of_a_file_read_to_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: str, stays: bool
) -> None:
    (folder / "a").write_bytes(b"1\n2\n")
    run = Run(folder)
    assert read(run) == [("in/a@1", b"1"), ("in/a@2", b"2")]
    if change == "return":
        (folder / "a").rename(folder.parent / "away")
        assert read(run) == []
        (folder.parent / "away").rename(folder / "a")
    new = ("in/a@3", b"3")
    with monkeypatch.context() as patched:
        patched.setattr(lines, "open_file", no_access)
        if change == "replace":
            replace_file(folder / "a", b"3\n")
            new = ("in/a@2:1", b"3")
        elif change == "truncate":
            (folder / "a").write_bytes(b"3\n")
            new = ("in/a@2:1", b"3")
        else:
            append(folder / "a", b"3\n")
        if change == "rename":
            (folder / "a").rename(folder / "b")
        assert read(run) == []
        run = run.again()
        assert read(run) == []
        if stays:
            (letter,) = run.all(after_s=SETTLED_S)
            assert isinstance(letter, DeadLetter)
            assert (letter.cause, letter.position) == ("unread_file", "in/a@3-")
            assert letter.detail == "from line 3 on: no"
            assert read(run, after_s=SETTLED_S) == []
            if change == "rename":
                (folder / "b").rename(folder / "c")
            run = run.again()
            assert read(run) == []
            assert read(run, after_s=SETTLED_S) == []
    assert read(run) == [new]
    assert read(run.again(), after_s=SETTLED_S) == []


def test_unsure_file_is_compared_before_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a").write_bytes(b"1\n2\n")
    run = Run(folder, room=Room(False, *[True] * 99))
    assert [record.position for record in run.call()] == ["in/a@1"]
    (folder / "a").write_bytes(b"3\n4\n5\n")
    with monkeypatch.context() as patched:
        patched.setattr(follow, "begins_as_read", forbidden)
        assert read(run) == []
    look = run.function._scan

    def readable_after_it(now_s: float) -> Iterator[bytes]:
        with monkeypatch.context() as patched:
            patched.setattr(follow, "begins_as_read", forbidden)
            yield from look(now_s)

    with monkeypatch.context() as patched:
        patched.setattr(run.function, "_scan", readable_after_it)
        assert read(run, after_s=SETTLED_S) == []
    letter, *rest = run.all()
    assert (letter.position, letter.cause) == ("in/a@2-", "unread_file")
    assert [record.position for record in rest] == ["in/a@2:1", "in/a@2:2", "in/a@2:3"]


@pytest.mark.parametrize("flag", ["done", "gone", "reported"])
def test_what_is_known_of_a_file_is_kept_in_its_state(flag: str) -> None:
    for entry in (Known(Stamp(1, 4, 5), "in/a", **{flag: True}), Known(None, "in/a", 2, 3, 4)):
        assert unpack_known(pack_known(entry)) == entry


def forbidden(*_: object, **__: object) -> bool:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


ACTIONS = st.lists(
    st.sampled_from(
        [
            "append",
            "append",
            "replace",
            "truncate",
            "rotate",
            "add",
            "call",
            "call",
            "unsure",
            "restart",
            "lose",
        ]
    ),
    max_size=40,
)


@example(["append", "truncate", "unsure"])
@given(ACTIONS)
def test_each_line_is_read_once_despite_file_changes(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("follow") / "in"
    folder.mkdir()
    run, numbers, written, got, states = Run(folder), count(), set[int](), [], {}
    log = folder / "log"

    def lines(many: int) -> bytes:
        new = [next(numbers) for _ in range(many)]
        written.update(new)
        return b"".join(b"line %d\n" % n for n in new)

    def settle() -> None:
        got.extend(read(run))

    for action in actions:
        if action == "append":
            with log.open("ab") as file:
                file.write(lines(2))
        elif action == "add":
            (folder / f"f{next(numbers)}").write_bytes(lines(1))
        elif action in ("replace", "truncate"):
            settle()
            content = lines(3)
            if action == "replace" or not log.exists():
                replace_file(log, content)
            else:
                log.write_bytes(content)
                later = log.stat().st_mtime_ns + 10**7
                os.utime(log, ns=(later, later))
        elif action == "rotate" and log.exists():
            os.replace(log, folder / f"log.{next(numbers)}")
        elif action in ("call", "unsure"):
            run.clock.advance(1.0)
            with pytest.MonkeyPatch.context() as patched:
                if action == "unsure":
                    patched.setattr(follow, "begins_as_read", forbidden)
                got += [(record.position, record.raw) for record in run.call()]
            states, kept = dict(run.context.states), len(got)
        elif action == "lose" and states:
            # The run ends without a checkpoint after the last call.
            del got[kept:]
            run = Run(folder, states=states)
        elif action == "restart":
            run = run.again()
            states, kept = dict(run.context.states), len(got)
        if action in ("replace", "truncate"):
            states, kept = dict(run.context.states), len(got)
    settle()
    lines_read = [raw for _, raw in got if raw]
    # A file that could not be compared may have had lines that nobody read; a dead letter reports it.
    assert "unsure" in actions or len(lines_read) == len(got)
    assert sorted(int(raw.split()[1]) for raw in lines_read) == sorted(written)
    assert len({position for position, _ in got}) == len(got)
