"""The lines of files, and their rows: several lines if a quoted CSV field spans them."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

from forebay.connectors.files.listing import data_files, name_in, why
from forebay.connectors.files.unpack import (
    BLOCK_BYTES,
    UNREADABLE,
    UTF_8,
    Encoding,
    check_link,
    encoding_of,
    members_of,
    open_file,
    packing_of,
)
from forebay.connectors.formats import BOM
from forebay.errors import ForebayError, SettingError
from forebay.untrusted_text import counted


@dataclass(frozen=True, slots=True)
class LinePart:
    """`size`: unpacked bytes."""

    path: str
    name: str
    member: str | None = None
    size: int = 0

    def open(self) -> BinaryIO:
        """Raises one of `UNREADABLE`."""
        return open_file(self.path, self.member)


@dataclass(frozen=True, slots=True)
class LinePlace:
    """`offset`: unpacked bytes before it, with their `lines` and checksum. `columns` None: header not read
    yet."""

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
class TextLine:
    """`raw`: with the newline, cut by `cut_bytes`. `text`: with replacement characters if there is a
    `problem`. `ended`: has its newline."""

    raw: bytes
    text: bytes
    problem: str | None
    after: LinePlace
    cut_bytes: int
    ended: bool


def files_of(path: Path) -> Iterator[LinePart]:
    """In reading order, without sizes. Raises `SettingError`."""
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
    """Blocks: a compressed file is unpacked once. Raises `SettingError`."""
    try:
        if part.member is None and packing_of(part.path) is None:
            return replace(part, size=os.stat(part.path).st_size)
        with part.open() as unpacked:
            return replace(part, size=sum(len(block) for block in iter(lambda: unpacked.read(1 << 20), b"")))
    except UNREADABLE as error:
        raise cannot_read(part.path, error) from None


def cannot_read(path: str, error: Exception) -> SettingError:
    return SettingError(f"source file {path} cannot be read: {why(error)}")


class LineFile:
    """The lines of a file, each cut to `most` characters. Blocks. Raises one of `UNREADABLE`."""

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

    def next(self) -> TextLine | None:
        """None at the end of the file; later calls return lines added since."""
        newline = self._encoding.newline
        raw, taken, crc, last_crc, ended = read_line(self._file, self._most, newline, self._after.crc)
        if not taken:
            return None
        before = self._after
        self._after = LinePlace(before.offset + taken, before.lines + 1, crc, taken, last_crc)
        too_long = None
        if taken > len(raw):
            too_long = f"the line has {taken} bytes, at most {self._most} are read"
        if self._encoding.codec == UTF_8:
            return TextLine(raw, raw, too_long, self._after, taken - len(raw), ended)
        text, problem = decoded(raw, self._encoding)
        problem = too_long or problem
        if before.lines == 0:
            text = text.removeprefix("\ufeff")
        return TextLine(raw, text.encode("utf-8"), problem, self._after, taken - len(raw), ended)

    @property
    def read_bytes(self) -> int:
        return self._after.offset

    def close(self) -> None:
        self._file.close()


def read_line(
    file: BinaryIO, most: int, newline: bytes = b"\n", crc: int = 0
) -> tuple[bytes, int, int, int, bool]:
    """The line, cut to `most` bytes; its bytes in the file (0 at the end); checksums of file and line;
    whether it has its newline."""
    width = len(newline)
    keep = most + 2 * width
    line = end = _read_units(file, keep, width)
    taken, crc, last_crc = len(line), zlib.crc32(line, crc), zlib.crc32(line)
    while end and not _ends(end, newline):
        end = _read_units(file, BLOCK_BYTES, width)
        taken, crc, last_crc = taken + len(end), zlib.crc32(end, crc), zlib.crc32(end, last_crc)
        if len(line) < keep:
            line += end[: keep - len(line)]
    return line, taken, crc, last_crc, bool(end)


def _read_units(file: BinaryIO, most: int, width: int) -> bytes:
    read = file.readline(most)
    return read + file.read(-len(read) % width) if width > 1 else read


def _ends(read: bytes, newline: bytes) -> bool:
    return read.endswith(newline) and len(read) % len(newline) == 0


def decoded(raw: bytes, encoding: Encoding) -> tuple[str, str | None]:
    try:
        return raw.decode(encoding.codec), None
    except UnicodeDecodeError as error:
        problem = f"not {encoding.codec}: byte {error.start + 1} is 0x{raw[error.start]:02x} ({error.reason})"
        return raw.decode(encoding.codec, "replace"), problem


def skip(file: BinaryIO, count: int) -> int:
    """The checksum of the skipped bytes, fewer at the end of the file."""
    crc = 0
    while count > 0 and (block := file.read(min(count, BLOCK_BYTES))):
        count, crc = count - len(block), zlib.crc32(block, crc)
    return crc


def begins_as_read(part: LinePart, place: LinePlace, *, whole: bool) -> bool:
    """Whether the bytes up to `place` are unchanged: the last line, or all if `whole` or compressed.

    Blocks. Raises one of `UNREADABLE`.
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


QUOTE = b'"'
MAX_ROW_LINES = 10_000
MAX_ROW_BYTES = 16 << 20

Quote = Literal["closed", "open", "misplaced"]
"""State at the end of a line. Misplaced: text follows a closing quote."""


@dataclass(frozen=True, slots=True)
class CsvRow:
    """UTF-8 without the newline. `number`: first line, from 1."""

    number: int
    text: bytes
    raw: bytes
    problem: str | None
    after: LinePlace
    cut_bytes: int = 0


class Rows:
    """`delimiter` None: each line is a row. Raises as `LineFile`.

    If a quoted field is not closed within the limits, or text follows its closing quote, its first line
    becomes a row with a problem.
    """

    def __init__(self, file: LineFile, delimiter: str | None) -> None:
        self._file = file
        self._delimiter = None if delimiter is None else delimiter.encode()
        self._ahead: deque[TextLine] = deque()
        # Lines after the first that do not close its open quote, and the bytes of all these lines.
        self._open = 0
        self._bytes = 0
        # How the line after these ends the quote, once known.
        self._end: Quote | None = None

    def next(self, *, final: bool = True) -> CsvRow | None:
        """None at the end of the file. `final=False`: the file may grow, so an incomplete last row is not
        returned."""
        if not self._ahead and not self._more():
            return None
        first = self._ahead[0]
        if not final and not first.ended:
            return None
        delimiter = self._delimiter
        if delimiter is None or quote_after(first.text, delimiter, inside=False) != "open":
            return self._take(1)
        if self._bytes == 0:
            self._bytes = len(first.text)
        while self._end is None and self._open < MAX_ROW_LINES and self._bytes <= MAX_ROW_BYTES:
            if len(self._ahead) <= self._open + 1 and not self._more():
                if not final:
                    return None
                return self._give_up("is not closed by the end of the file")
            line = self._ahead[self._open + 1]
            if not final and not line.ended:
                return None
            found = quote_after(line.text, delimiter, inside=True)
            if found == "open":
                self._open, self._bytes = self._open + 1, self._bytes + len(line.text)
            else:
                self._end = found
        if self._end == "closed":
            return self._take(self._open + 2)
        if self._end is None:
            return self._give_up(f"is not closed within {counted(self._open + 1, 'line')}")
        number = self._ahead[self._open + 1].after.lines
        return self._give_up(f"is not closed: in line {number}, text follows the next quote")

    @property
    def unfinished(self) -> bool:
        return bool(self._ahead)

    @property
    def read_bytes(self) -> int:
        """Up to the end of the last line read, which may belong to a later row."""
        return self._file.read_bytes

    def close(self) -> None:
        self._file.close()

    def _more(self) -> bool:
        line = self._file.next()
        if line is None:
            return False
        self._ahead.append(line)
        return True

    def _give_up(self, problem: str) -> CsvRow:
        number = self._ahead[0].after.lines
        return self._take(1, f"the quote that opens in line {number} {problem}")

    def _take(self, count: int, problem: str | None = None) -> CsvRow:
        if count == 1 and self._open:
            # The next line becomes the first: one fewer leaves the quote open.
            self._open -= 1
            self._bytes -= len(self._ahead[0].text)
        else:
            self._open, self._bytes, self._end = 0, 0, None
        first = self._ahead.popleft()
        if count == 1 and first.raw is first.text:
            text = without_end(first.raw)
            return CsvRow(
                first.after.lines, text, text, first.problem or problem, first.after, first.cut_bytes
            )
        lines = [first, *(self._ahead.popleft() for _ in range(count - 1))]
        problem = next((line.problem for line in lines if line.problem is not None), problem)
        text = without_end(b"".join(line.text for line in lines))
        raw = text
        if any(line.raw is not line.text for line in lines):
            raw = b"".join(line.raw for line in lines)
            raw = raw if b"\0" in raw[-4:] else without_end(raw)
        cut_bytes = sum(line.cut_bytes for line in lines)
        return CsvRow(first.after.lines, text, raw, problem, lines[-1].after, cut_bytes)


def without_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def quote_after(line: bytes, delimiter: bytes, *, inside: bool) -> Quote:
    """`inside`: a quoted field is open at the start. As in Python's csv module, only a first character opens
    one."""
    line = without_end(line.removeprefix(BOM))
    at = 0
    while True:
        if inside or line.startswith(QUOTE, at):
            at = _closing_quote(line, at if inside else at + 1)
            if at < 0:
                return "open"
            if at + 1 < len(line) and not line.startswith(delimiter, at + 1):
                return "misplaced"
            inside = False
        at = line.find(delimiter, at)
        if at < 0:
            return "closed"
        at += len(delimiter)


def _closing_quote(line: bytes, at: int) -> int:
    while (at := line.find(QUOTE, at)) >= 0:
        if not line.startswith(QUOTE, at + 1):
            return at
        at += 2
    return -1
