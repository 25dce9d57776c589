"""What is read of files, in which order and in which pieces."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.files import lines as module
from forebay.connectors.files.lines import (
    LineReader,
    Pieces,
    longest_line,
    open_file,
    parts_of,
    piece_bytes,
    read_line,
)
from forebay.connectors.formats import Format
from forebay.errors import SettingError

TEXT = LineReader("d", Format("text"))


def whole(parts: list[tuple[str, int]] | tuple[tuple[str, int], ...], most: int = 1000) -> list[bytes]:
    pieces = Pieces(parts, most)
    return [line for _, line in pieces.lines((0, 0), pieces.size)]


def test_files_are_read_by_name_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b", "10", "2", "sub/a", ".hidden", "_new/x", "a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    assert whole(parts_of(tmp_path, TEXT)) == [b"10", b"2", b"a", b"b", b"sub/a"]


LINES = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b"")))


@given(st.lists(LINES, max_size=4), st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_pieces_give_each_line_once_and_in_order_wherever_reading_goes_on(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[bytes]], end: bytes, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    for number, lines in enumerate(files):
        (folder / f"{number}").write_bytes(b"".join(line + end for line in lines))
    parts = parts_of(folder, TEXT)
    pieces, place, read = Pieces(parts, 1000), (0, 0), []
    untils = data.draw(st.lists(st.integers(0, pieces.size)).map(sorted))
    for until in [*untils, pieces.size]:
        if data.draw(st.booleans()):
            pieces = Pieces(parts, 1000)
        found = list(pieces.lines(place, until))
        read += [line for _, line in found]
        place = found[-1][0] if found else place
    assert read == [line for lines in files for line in lines]


def test_a_piece_has_only_the_lines_that_begin_in_it(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"aaaa\nbb\ncccccc\n")
    pieces = Pieces(parts_of(tmp_path, TEXT), 1000)
    assert [line for _, line in pieces.lines((0, 0), 5)] == [b"aaaa"]
    assert [line for _, line in pieces.lines((0, 0), 6)] == [b"aaaa", b"bb"]
    assert list(pieces.lines((0, 8), 8)) == []


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip), ("bz2", bz2), ("xz", lzma), ("GZ", gzip)])
def test_compressed_files_are_unpacked(tmp_path: Path, suffix: str, pack: object) -> None:
    content = b"".join(b"%d\n" % n for n in range(5000))
    (tmp_path / f"f.{suffix}").write_bytes(pack.compress(content))  # type: ignore[attr-defined]
    parts = parts_of(tmp_path, TEXT)
    assert parts[0][1] == len(content)
    assert whole(parts) == content.split()
    assert next(Pieces(parts, 100).lines((0, 8890), 10**9))[1] == b"2000"


def test_a_file_that_is_not_what_its_name_says_is_told(tmp_path: Path) -> None:
    (tmp_path / "f.gz").write_bytes(b"plain")
    with pytest.raises(SettingError, match=r"f\.gz cannot be read: Not a gzipped file"):
        parts_of(tmp_path, TEXT)


def test_no_more_is_planned_than_the_limit_takes(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"1\n\n2\n")
    parts = parts_of(tmp_path, LineReader("d", Format("text"), limit=3))
    assert [(Path(path).name, size) for path, size in parts] == [("a", 5), ("b", 2)]
    assert len(parts_of(tmp_path, LineReader("d", Format("text"), limit=7))) == 3


def test_a_file_that_became_shorter_ends_where_it_ends(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(b"1\n2\n3\n")
    parts = parts_of(tmp_path, TEXT)
    (tmp_path / "a").write_bytes(b"1\n")
    assert whole(parts) == [b"1", b"1", b"2", b"3"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_of_a_long_line_no_more_than_one_byte_over_the_bound_is_kept(end: bytes) -> None:
    file = io.BytesIO(b"x" * 100 + end + b"y" * 5000 + end + b"z" * 101 + end + b"rest")
    read = [read_line(file, 100) for _ in range(5)]
    assert [line for line, _ in read] == [b"x" * 100, b"y" * 101, b"z" * 101, b"rest", b""]
    assert [taken - len(end) for _, taken in read[:3]] == [100, 5000, 101]
    assert [taken for _, taken in read[3:]] == [4, 0]


class Endless(io.BytesIO):
    """Forty blocks without the end of a line; notes how much was asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def readline(self, size: int | None = -1, /) -> bytes:
        self.asked.append(-1 if size is None else size)
        return b"x" * self.asked[-1] if len(self.asked) <= 40 else b""


def test_an_endless_line_is_read_a_block_at_a_time() -> None:
    file = Endless()
    line, taken = read_line(file, 10)
    assert len(line) == 11
    assert taken == 12 + 39 * module.BLOCK_BYTES
    assert set(file.asked) == {12, module.BLOCK_BYTES}


def test_every_record_that_can_be_right_is_kept_whole() -> None:
    assert longest_line(LineReader("f", Format(max_record_bytes=10))) == module.LONGEST_LINE_BYTES
    assert longest_line(LineReader("f", Format(max_record_bytes=1 << 30))) == 1 << 30
    assert longest_line(LineReader("f", Format(), letters=True)) > 2 * module.LONGEST_LINE_BYTES


@pytest.mark.parametrize(("line", "size"), [(1, 64), (19, 80), (99, 400), (5_000, 1024)])
def test_a_piece_has_a_few_lines(tmp_path: Path, line: int, size: int) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes((b"x" * line + b"\n") * 100)
    assert piece_bytes(parts_of(tmp_path, TEXT)) == pytest.approx(size, abs=4)


def test_a_piece_of_nothing_and_of_one_endless_line(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    assert piece_bytes(parts_of(tmp_path, TEXT)) == 64
    (tmp_path / "f").write_bytes(b"x" * 100_000)
    assert piece_bytes(parts_of(tmp_path, TEXT)) == 1024


def test_plain_files_are_opened_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b"a\r\nb")
    with open_file(str(tmp_path / "f.csv")) as file:
        assert file.read() == b"a\r\nb"
