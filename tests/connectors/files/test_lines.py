"""Which parts of files are read, and the lines of one file."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.codec import decode
from forebay.connectors.files import lines as module
from forebay.connectors.files import reader as reader_module
from forebay.connectors.files.lines import LineFile, LinePart, LinePlace, begins_as_read, read_line
from forebay.connectors.files.reader import FileCursor, FilesReader, LineReader, parts_of
from forebay.connectors.formats import Format
from forebay.errors import ForebayError, SettingError

TEXT = LineReader(Format("text"))


def test_plan_does_not_exceed_the_limit(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"1\n\n2\n")
    parts = parts_of(tmp_path, LineReader(Format("text"), limit=3))
    assert [(Path(part.path).name, part.size) for part in parts] == [("a", 5), ("b", 2)]
    assert len(parts_of(tmp_path, LineReader(Format("text"), limit=7))) == 3


def test_the_lost_end_of_a_file_that_became_shorter_is_a_dead_letter(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(b"1\n2\n3\n")
    parts = parts_of(tmp_path, TEXT)
    (tmp_path / "a").write_bytes(b"1\n")
    found = [decode(record) for _, record in FilesReader(parts, TEXT).records(FileCursor()) if record]
    name = tmp_path.name
    assert [record.position for record in found] == [
        f"{name}/{at}" for at in ("a@1", "a@2-", "b@1", "b@2", "b@3")
    ]
    letter = found[1]
    assert letter.cause == "unread_file"
    assert letter.detail == "from line 2 on: the file became shorter: from 6 bytes to 2"


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        (TEXT, b"1\nref"),
        (TEXT, b"1\nrefund 2222"),
        (LineReader(Format("text"), encoding="utf-16-le"), "1\nref".encode("utf-16-le")),
        (LineReader(Format("csv", columns=("a",))), b'1\n"x\ny\n'),
    ],
)
def test_a_line_that_lost_its_end_is_not_a_record(tmp_path: Path, reader: LineReader, content: bytes) -> None:
    (tmp_path / "a").write_bytes(b"x" * 40)
    parts = parts_of(tmp_path, reader)
    (tmp_path / "a").write_bytes(content)
    found = [decode(record) for _, record in FilesReader(parts, reader).records(FileCursor()) if record]
    assert [record.position for record in found] == [
        f"{tmp_path.name}/a@1",
        f"{tmp_path.name}/a@2-",
    ]
    assert found[1].detail == f"from line 2 on: the file became shorter: from 40 bytes to {len(content)}"


def test_a_file_that_becomes_shorter_while_a_limit_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"1\n2")
    monkeypatch.setattr(reader_module, "sized", lambda part: replace(part, size=9))
    (part,) = parts_of(tmp_path, LineReader(Format("text"), limit=2))
    assert part.size == 9


@pytest.mark.parametrize("content", [b"1\n", b"1\nxxxxxxx\n", None])
def test_file_changed_during_a_run_fails_the_run(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n3\n")
    parts = parts_of(tmp_path, TEXT)
    cursor = [cursor for cursor, _ in FilesReader(parts, TEXT).records(FileCursor())][1]
    (tmp_path / "a").unlink()
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    with pytest.raises(ForebayError, match="this run has begun to read it: put the file back"):
        list(FilesReader(parts, TEXT).records(cursor))


NEWLINES = st.sampled_from([b"\n", b"\n\0", b"\0\n", b"\n\0\0\0"])
UNIT = st.sampled_from([b"\n", b"\0", b"a", b"\r"])


@given(st.lists(UNIT, max_size=200).map(b"".join), NEWLINES, st.integers(0, 12))
def test_lines_end_at_whole_line_feeds_and_nothing_is_lost(data: bytes, newline: bytes, most: int) -> None:
    width, file, lines = len(newline), io.BytesIO(data), []
    crc = before = 0
    while True:
        line, taken, crc, last_crc, _ = read_line(file, most, newline, crc)
        if not taken:
            break
        whole = data[before : before + taken]
        assert line == whole[: len(line)]
        assert len(line) >= min(taken, most)
        assert len(line) <= most + 3 * width
        assert crc == module.zlib.crc32(data[: before + taken])
        assert last_crc == module.zlib.crc32(whole)
        lines.append(whole)
        before += taken
    assert before == len(data)
    units = [data[at : at + width] for at in range(0, len(data), width)]
    expected, line = [], b""
    for unit in units:
        line += unit
        if unit == newline:
            expected.append(line)
            line = b""
    assert lines == [*expected, *([line] if line else [])]


class Endless(io.BytesIO):
    """Forty blocks without a line end; records the size of reads."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def readline(self, size: int | None = -1, /) -> bytes:
        self.asked.append(-1 if size is None else size)
        return b"x" * self.asked[-1] if len(self.asked) <= 40 else b""


def test_an_endless_line_is_read_a_block_at_a_time() -> None:
    file = Endless()
    line, taken, *_ = read_line(file, 10)
    assert len(line) == 12
    assert taken == 12 + 39 * module.BLOCK_BYTES
    assert set(file.asked) == {12, module.BLOCK_BYTES}


def test_every_possibly_valid_record_is_kept_whole() -> None:
    longest = 16 << 20
    assert LineReader(Format(max_record_bytes=10)).longest_line == longest
    assert LineReader(Format(max_record_bytes=1 << 30)).longest_line == 1 << 30
    assert LineReader(Format(), letters=True).longest_line > 2 * longest


def lines_of(
    path: Path, encoding: str, most: int = 100, place: LinePlace | None = None
) -> list[module.TextLine]:
    file = LineFile(LinePart(str(path), "f"), encoding, most, place or LinePlace())
    return list(iter(file.next, None))


def test_long_line_of_another_encoding_is_rejected_not_cut(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(("x" * 500 + "\nnext\n").encode("utf-16"))
    long, following = lines_of(tmp_path / "f", "utf-16")
    assert long.problem == "the line has 1004 bytes, at most 200 are read"
    assert (following.text, following.problem) == (b"next\n", None)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_a_long_line_has_its_end(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "f").write_bytes(("x" * 500 + "\n" + "y" * 500).encode(encoding))
    assert [(line.cut_bytes > 0, line.ended) for line in lines_of(tmp_path / "f", encoding)] == [
        (True, True),
        (True, False),
    ]


def test_byte_order_mark_applies_from_any_start(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xfe\xff" + "one\ntwo\n".encode("utf-16-be"))
    first, second = lines_of(tmp_path / "f", "utf-16")
    assert (first.text, second.text) == (b"one\n", b"two\n")
    assert lines_of(tmp_path / "f", "utf-16", place=first.after) == [second]


@pytest.mark.parametrize("whole", [True, False])
def test_beginning_of_a_file_is_compared(tmp_path: Path, whole: bool) -> None:
    path, part = tmp_path / "f", LinePart(str(tmp_path / "f"), "f")
    path.write_bytes(b"one\ntwo\nthree\n")
    place = lines_of(path, "utf-8")[1].after

    def holds(content: bytes) -> bool:
        path.write_bytes(content)
        return begins_as_read(part, place, whole=whole)

    assert holds(b"one\ntwo\n")
    assert holds(b"one\ntwo\nthree\nfour\n")
    assert not holds(b"one\ntwa\nthree\n")
    assert not holds(b"one\ntw")
    assert not holds(b"")
    assert holds(b"ane\ntwo\n") is not whole
    assert begins_as_read(part, replace(place, offset=0, crc=0, last_bytes=0, last_crc=0), whole=whole)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "f.gz").write_bytes(b"\x1f\x8b\x08 broken")
    with pytest.raises(
        SettingError, match=r"f\.gz cannot be read: Unknown compression|f\.gz cannot be read:"
    ):
        parts_of(tmp_path, TEXT)
