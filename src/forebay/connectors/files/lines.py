"""A file, or a folder of them, as lines that are read in order, some at a time, and the record of each line.

A CSV row goes on over lines while a quote is open.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, cast

from forebay.codec import encode
from forebay.connectors.formats import BOM, Format
from forebay.connectors.letters import read_letter
from forebay.errors import SettingError
from forebay.records import DeadLetter, Event

QUOTE = b'"'
MAX_ROW_LINES = 1000
"""Lines after which a CSV row whose quote is still open is given up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a reader is: lines read, records given out, and the lines of a row whose quote is open."""

    lines: int = 0
    records: int = 0
    partial: bytes = b""
    partial_lines: int = 0


@dataclass(frozen=True, slots=True)
class LineReader:
    """What each line of a source becomes. `name` goes into positions (`name@line`, counted from 1).

    `header`: a CSV row equal to the columns is a header and no record. `letters`: each line is a dead
    letter, whose untouched record is read under its own position, see `read_letter`. `limit`: records
    (events and dead letters) after which the rest is ignored.
    """

    name: str
    format: Format
    header: bool = False
    letters: bool = False
    limit: int | None = None

    def step(self, at: Progress, line: bytes) -> tuple[Progress, bytes | None]:
        """Progress after `line` (without its end) and the encoded record that it completes, if it does."""
        lines = at.lines + 1
        if self.limit is not None and at.records >= self.limit:
            return Progress(lines, at.records), None
        raw = at.partial + b"\n" + line if at.partial else line
        if self._goes_on(at, line, len(raw)):
            return Progress(lines, at.records, raw, at.partial_lines + 1), None
        return self._record(Progress(lines, at.records), raw)

    def end(self, at: Progress) -> tuple[Progress, bytes | None]:
        """The same at the end of input: an incomplete row becomes a dead letter."""
        if not at.partial:
            return at, None
        return self._record(Progress(at.lines, at.records), at.partial)

    def _goes_on(self, at: Progress, line: bytes, size: int) -> bool:
        return (
            self.format.kind == "csv"
            and not self.letters
            and size <= self.format.max_record_bytes
            and at.partial_lines < MAX_ROW_LINES
            and quote_open(line, self.format.delimiter, inside=bool(at.partial))
        )

    def _record(self, at: Progress, raw: bytes) -> tuple[Progress, bytes | None]:
        if not (raw if self.format.kind == "csv" else raw.strip()):
            return at, None
        position = f"{self.name}@{at.lines}"
        if self.letters:
            return Progress(at.lines, at.records + 1), encode(read_letter(self.format, raw, position))
        record = self.format.read(raw, position)
        if self.header and self._is_header(record, raw):
            return at, None
        return Progress(at.lines, at.records + 1), encode(record)

    def _is_header(self, record: Event | DeadLetter, raw: bytes) -> bool:
        if isinstance(record, DeadLetter):
            # Where the format has a time, a header has the name of its column there.
            record = replace(self.format, time=None).read(raw, "")
        return isinstance(record, Event) and record.fields == {name: name for name in self.format.columns}


def quote_open(line: bytes, delimiter: str, *, inside: bool = False) -> bool:
    """Whether a quoted field is open at the end of `line`; `inside` says that one was at its start.

    As in Python's csv module, a quote opens a field only where it is the field's first character.
    """
    line = line.removeprefix(BOM)
    separator = delimiter.encode()
    at = 0
    while True:
        if inside or line.startswith(QUOTE, at):
            at = _closing_quote(line, at if inside else at + 1)
            if at < 0:
                return True
            inside = False
        at = line.find(separator, at)
        if at < 0:
            return False
        at += 1


def _closing_quote(line: bytes, at: int) -> int:
    while (at := line.find(QUOTE, at)) >= 0:
        if not line.startswith(QUOTE, at + 1):
            return at
        at += 2
    return -1


LINES_PER_PIECE = 4
"""A checkpoint waits for the lines of a piece: few of them, though each piece costs a call."""
LEAST_PIECE_BYTES, MOST_PIECE_BYTES = 64, 1024
SAMPLED_BYTES = 1 << 14

LONGEST_LINE_BYTES = 16 << 20
BLOCK_BYTES = 1 << 16
OPENERS: dict[str, Callable[[str, Any], Any]] = {
    ".gz": gzip.open,
    ".gzip": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)

Part = tuple[str, int]
"""A file's path, and how many of its bytes (those of a compressed one unpacked) are read."""

Place = tuple[int, int]
"""The number of a part, and how many of its bytes were read."""


def data_files(path: Path) -> Iterator[Path]:
    """The file at `path`, or the files under it that a source reads, by name."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        if file.is_file() and not hidden:
            yield file


def open_file(path: str) -> BinaryIO:
    """The bytes of a file; .gz, .bz2 and .xz are unpacked."""
    opener = OPENERS.get(Path(path).suffix.lower())
    return cast(BinaryIO, opener(path, "rb") if opener else open(path, "rb", buffering=BLOCK_BYTES))


def longest_line(reader: LineReader) -> int:
    """Bytes of a line that are kept, of a longer one as well: enough for every record that can be right.

    A dead letter's line holds a record with some bytes doubled.
    """
    longest = max(reader.format.max_record_bytes, LONGEST_LINE_BYTES)
    return 2 * longest + BLOCK_BYTES if reader.letters else longest


def read_line(file: BinaryIO, most: int) -> tuple[bytes, int]:
    """The next line without its end (LF or CRLF), cut to `most` + 1 bytes, and how many bytes it takes in
    the file: none at the end."""
    line = end = file.readline(most + 2)
    taken = len(line)
    while end and not end.endswith(b"\n") and (end := file.readline(BLOCK_BYTES)):
        taken += len(end)
    return line.removesuffix(b"\n").removesuffix(b"\r")[: most + 1], taken


def piece_bytes(parts: Sequence[Part]) -> int:
    """The size of a piece of `parts`: a few lines of mean length, judging by the files' beginnings.

    Blocks: some of each of the first files is read. Raises `SettingError` for a file that cannot be.
    """
    taken = lines = 0
    for path, size in parts[:16]:
        try:
            with open_file(path) as file:
                block = file.read(min(size, SAMPLED_BYTES))
        except UNREADABLE as error:
            raise SettingError(f"source file {path} cannot be read: {error}") from None
        taken, lines = taken + len(block), lines + block.count(b"\n")
    return min(MOST_PIECE_BYTES, max(LEAST_PIECE_BYTES, LINES_PER_PIECE * taken // max(1, lines)))


class Pieces:
    """Lines of `parts`, one part after the other. Keeps a file open in between; blocks on the file system."""

    def __init__(self, parts: Sequence[Part], most: int) -> None:
        self._parts = parts
        self._starts = list(accumulate((size for _, size in parts), initial=0))
        self._most = most
        self._file: BinaryIO | None = None
        self._number = -1

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return self._starts[-1]

    def lines(self, place: Place, until: int) -> Iterator[tuple[Place, bytes]]:
        """The lines after `place` that begin before byte `until` of the whole.

        Each comes with the place after it, as at most `most` + 1 bytes without its end.
        """
        number, offset = place
        while number < len(self._parts):
            size = self._parts[number][1]
            while offset < size and self._starts[number] + offset < until:
                line, taken = read_line(self._at(number, offset), self._most)
                # A file that became shorter ends where it ends.
                offset = offset + taken if taken else size
                if taken:
                    yield (number, offset), line
            if offset < size:
                return
            number, offset = number + 1, 0

    def close(self) -> None:
        """Close the open file. Reading again opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _at(self, number: int, offset: int) -> BinaryIO:
        if self._file is None or number != self._number:
            self.close()
            self._file, self._number = open_file(self._parts[number][0]), number
        if self._file.tell() != offset:
            self._file.seek(offset)
        return self._file


def parts_of(path: Path, reader: LineReader) -> tuple[Part, ...]:
    """What is to be read of the files at `path`: all of them by name, up to the limit of `reader`.

    Blocks: compressed files are unpacked once for their size, and with a limit what lies before it is read.
    Raises `SettingError` for a file that cannot be read.
    """
    parts = []
    for file in data_files(path.absolute()):
        try:
            parts.append((str(file), _size(file)))
        except UNREADABLE as error:
            raise SettingError(f"source file {file} cannot be read: {error}") from None
    return tuple(parts) if reader.limit is None else _up_to_limit(parts, reader)


def _size(file: Path) -> int:
    if file.suffix.lower() not in OPENERS:
        return file.stat().st_size
    with open_file(str(file)) as unpacked:
        return sum(len(block) for block in iter(lambda: unpacked.read(1 << 20), b""))


def _up_to_limit(parts: Sequence[Part], reader: LineReader) -> tuple[Part, ...]:
    pieces, at = Pieces(parts, longest_line(reader)), Progress()
    try:
        for (number, offset), line in pieces.lines((0, 0), pieces.size):
            at, _ = reader.step(at, line)
            if at.records == reader.limit:
                return (*parts[:number], (parts[number][0], offset))
    finally:
        pieces.close()
    return tuple(parts)
