"""The files of a source and their lines, each with the place after it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from forebay.connectors.encodings import UTF_8, Encoding, encoding_of
from forebay.connectors.files.unpack import (
    BLOCK_BYTES,
    UNREADABLE,
    check_link,
    is_hidden,
    members_of,
    open_file,
    packing_of,
)
from forebay.errors import ForebayError, SettingError


@dataclass(frozen=True, slots=True)
class LinePart:
    """A file, or a member of a zip archive. Positions begin with `name`; `size`: unpacked bytes."""

    path: str
    name: str
    member: str | None = None
    size: int = 0

    def open(self) -> BinaryIO:
        """Unpacked. Raises one of `UNREADABLE`."""
        return open_file(self.path, self.member)


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Read position in one file.

    `offset`: unpacked bytes before it; `lines`, `crc`: of those bytes. `last_bytes`, `last_crc`: of the last
    line. `columns`: the header's names; None: not read yet.
    """

    offset: int = 0
    lines: int = 0
    crc: int = 0
    last_bytes: int = 0
    last_crc: int = 0
    columns: tuple[str, ...] | None = None

    def with_columns(self, columns: tuple[str, ...]) -> LinePlace:
        # Called once a row; dataclasses.replace takes three times as long.
        return LinePlace(self.offset, self.lines, self.crc, self.last_bytes, self.last_crc, columns)


START = LinePlace()


@dataclass(frozen=True, slots=True)
class Line:
    """`raw`: bytes with the newline, cut by `cut_bytes` if long. `text`: the same as UTF-8, with
    replacement characters and a `problem` if it cannot be decoded. `after`: the place behind it.
    """

    raw: bytes
    text: bytes
    problem: str | None
    after: LinePlace
    cut_bytes: int = 0

    @property
    def ended(self) -> bool:
        """False for an unfinished last line."""
        return self.text.endswith(b"\n")


def data_files(path: Path) -> Iterator[Path]:
    """`path` itself, or the files under it by name."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if not is_hidden(file.relative_to(path)) and file.is_file():
            yield file


def name_in(root: Path, file: Path) -> str:
    """For positions: the base name of `root` and the relative path."""
    base = os.path.basename(os.path.abspath(root))
    name = base if file == root else f"{base}/{file.relative_to(root).as_posix()}"
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def files_of(path: Path) -> Iterator[LinePart]:
    """In reading order, without sizes. Raises `SettingError` if one cannot be read."""
    for file in data_files(path):
        name = name_in(path, file)
        try:
            check_link(file)
            members: list[str | None] = [None]
            if packing_of(file) == "zip":
                members = [*members_of(file)]
        except UNREADABLE as error:
            raise cannot_read(str(file), error) from None
        for member in members:
            yield LinePart(os.path.abspath(file), name if member is None else f"{name}/{member}", member)


def sized(part: LinePart) -> LinePart:
    """Add the size. Blocks: a compressed file is unpacked once. Raises `SettingError` if it cannot be
    read.
    """
    try:
        if part.member is None and packing_of(part.path) is None:
            return replace(part, size=os.stat(part.path).st_size)
        with part.open() as unpacked:
            return replace(part, size=sum(len(block) for block in iter(lambda: unpacked.read(1 << 20), b"")))
    except UNREADABLE as error:
        raise cannot_read(part.path, error) from None


def cannot_read(path: str, error: Exception) -> SettingError:
    return SettingError(f"source file {path} cannot be read: {why(error)}")


def why(error: Exception) -> str:
    """The reason without the file's name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


class LineFile:
    """The lines of one file from a place on. Blocks on the file system.

    Opening and reading raise one of `UNREADABLE`. Keeps at most `most` characters of a line, and its newline.
    """

    def __init__(self, part: LinePart, encoding: str, most: int, place: LinePlace) -> None:
        self._after = place
        self._file = part.open()
        try:
            head = self._file.read(4)
            self._encoding = encoding_of(encoding, head)
            self._most = most * len(self._encoding.newline)
            if self._file.seekable():
                self._file.seek(place.offset)
            else:
                self._file.close()
                self._file = part.open()
                skip(self._file, place.offset)
        except BaseException:
            self._file.close()
            raise

    def next(self) -> Line | None:
        """None at the end of the file; later calls return lines added since."""
        newline = self._encoding.newline
        raw, taken, crc, last_crc = read_line(self._file, self._most, newline, self._after.crc)
        if not taken:
            return None
        before = self._after
        self._after = LinePlace(before.offset + taken, before.lines + 1, crc, taken, last_crc)
        if self._encoding.codec == UTF_8:
            return Line(raw, raw, None, self._after, taken - len(raw))
        text, problem = decoded(raw, self._encoding)
        if taken > len(raw):
            problem = f"the line has {taken} bytes, at most {self._most} are read"
        if before.lines == 0:
            text = text.removeprefix("\ufeff")
        return Line(raw, text.encode("utf-8"), problem, self._after, taken - len(raw))

    def close(self) -> None:
        self._file.close()


def read_line(file: BinaryIO, most: int, newline: bytes = b"\n", crc: int = 0) -> tuple[bytes, int, int, int]:
    """Read a line, keeping at most `most` bytes and the newline.

    Returns the line, its bytes in the file (0 at the end), the file's checksum so far (`crc`: before the
    line), and the line's own.
    """
    width = len(newline)
    keep = most + 2 * width
    line = end = _read_units(file, keep, width)
    taken, crc, last_crc = len(line), zlib.crc32(line, crc), zlib.crc32(line)
    while end and not _ends(end, newline):
        end = _read_units(file, BLOCK_BYTES, width)
        taken, crc, last_crc = taken + len(end), zlib.crc32(end, crc), zlib.crc32(end, last_crc)
        if len(line) < keep:
            line += end[: keep - len(line)]
    return line, taken, crc, last_crc


def _read_units(file: BinaryIO, most: int, width: int) -> bytes:
    read = file.readline(most)
    return read + file.read(-len(read) % width) if width > 1 else read


def _ends(read: bytes, newline: bytes) -> bool:
    return read.endswith(newline) and len(read) % len(newline) == 0


def decoded(raw: bytes, encoding: Encoding) -> tuple[str, str | None]:
    """The text, and the problem if it has replacement characters."""
    try:
        return raw.decode(encoding.codec), None
    except UnicodeDecodeError as error:
        problem = f"not {encoding.codec}: byte {error.start + 1} is 0x{raw[error.start]:02x} ({error.reason})"
        return raw.decode(encoding.codec, "replace"), problem


def skip(file: BinaryIO, count: int) -> int:
    """Returns the checksum of the skipped bytes, fewer than `count` at the end of the file."""
    crc = 0
    while count > 0 and (block := file.read(min(count, BLOCK_BYTES))):
        count, crc = count - len(block), zlib.crc32(block, crc)
    return crc


def begins_as_read(part: LinePart, place: LinePlace, *, whole: bool) -> bool:
    """Whether the bytes read up to `place` are unchanged. Blocks.

    `whole` compares all of them; otherwise only the last line, unless the file is compressed. Raises one of
    `UNREADABLE`.
    """
    with part.open() as file:
        if not whole and file.seekable():
            if os.fstat(file.fileno()).st_size < place.offset:
                return False
            file.seek(place.offset - place.last_bytes)
            return skip(file, place.last_bytes) == place.last_crc
        return skip(file, place.offset) == place.crc


def unlike_before(part: LinePart, error: Exception | None = None) -> ForebayError:
    found = "has other content" if error is None else f"cannot be read ({why(error)})"
    return ForebayError(
        f"source file {part.path} {found}, and this run has begun to read it: put the file back, or "
        "start over"
    )
