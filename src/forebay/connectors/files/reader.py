"""Turn rows of files into records; check the headers of CSV files."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.codec import encode
from forebay.connectors.files.lines import (
    START,
    CsvRow,
    LineFile,
    LinePart,
    LinePlace,
    Rows,
    begins_as_read,
    cannot_read,
    files_of,
    sized,
    unlike_before,
)
from forebay.connectors.files.listing import skipped_entries
from forebay.connectors.files.unpack import UNREADABLE, UTF_8, canonical_encoding, encoding_hint, looks_utf_16
from forebay.connectors.formats import BOM, Format, csv_rows
from forebay.connectors.kafka.registry import SchemaRegistry
from forebay.connectors.letters import read_letter
from forebay.errors import MalformedRecord, SettingError, UnreadFile
from forebay.records import DeadLetter, Event

if TYPE_CHECKING:
    from forebay.connectors.files.source import Files
    from forebay.connectors.kafka.source import Parse

log = logging.getLogger(__name__)

LONGEST_LINE_BYTES = 16 << 20
BLOCK_BYTES = 1 << 16
Step = tuple[LinePlace, bytes | None]


@dataclass(frozen=True, slots=True)
class LineReader:
    """`header`: each file's first row names its columns; repeated headers are skipped. `letters`: lines are
    dead letters."""

    format: Format
    header: bool = False
    letters: bool = False
    limit: int | None = None
    encoding: str = UTF_8
    registry: SchemaRegistry | None = None

    @property
    def longest_line(self) -> int:
        """More than any record: dead letters double some bytes."""
        longest = max(self.format.max_record_bytes, LONGEST_LINE_BYTES)
        return 2 * longest + BLOCK_BYTES if self.letters else longest

    def rows(self, part: LinePart, place: LinePlace) -> Rows:
        delimiter = self.format.delimiter if self.format.kind == "csv" and not self.letters else None
        return Rows(LineFile(part, self.encoding, self.longest_line, place), delimiter)

    def step(self, label: str, before: LinePlace, row: CsvRow) -> Step:
        after = row.after if before.columns is None else row.after.with_columns(before.columns)
        position = f"{label}{row.number}"
        if row.problem is not None:
            # The next row is not the header either.
            after = after.with_columns(()) if self.header and before.columns is None else after
            # A cut line may end within a character, without being in another encoding.
            detail = row.problem if row.cut_bytes else self._with_hint(row.problem, row.raw)
            cause = MalformedRecord.cause
            return after, encode(
                DeadLetter(row.raw, cause, detail, position=position, cut_bytes=row.cut_bytes)
            )
        content = row.text.removeprefix(BOM)
        if not (content if self.format.kind == "csv" else content.strip()):
            return after, None
        if self.header and before.columns is None:
            return self._header(after, row, position)
        record = self._record(row.text, position, before.columns)
        if self.header and self._repeats_header(record, row.text, before.columns or ()):
            return after, None
        return after, encode(record)

    def _record(self, raw: bytes, position: str, columns: tuple[str, ...] | None) -> Event | DeadLetter:
        if self.letters:
            return read_letter(self.format, raw, position, parse=self._parse())
        form = self.format if columns is None else replace(self.format, columns=columns)
        if self.header and not columns:
            return self._letter(
                raw, "the header of its file cannot be read: the columns have no names", position
            )
        if form.kind != "jsonl" and self.encoding == UTF_8 and b"\0" in raw and looks_utf_16(raw):
            return self._letter(raw, "not UTF-8", position)
        record = form.read(raw, position)
        if isinstance(record, DeadLetter):
            record = replace(record, detail=self._with_hint(record.detail, raw))
        return record

    def _parse(self) -> Parse | None:
        if self.registry is None:
            return None
        # This imports the schema parsers.
        from forebay.connectors.kafka.registry_values import values_of

        return values_of(self.registry).fields

    def _letter(self, raw: bytes, detail: str, position: str) -> DeadLetter:
        return DeadLetter(raw, MalformedRecord.cause, self._with_hint(detail, raw), position=position)

    def _with_hint(self, detail: str, raw: bytes) -> str:
        hint = encoding_hint(raw) if self.encoding == UTF_8 else ""
        return f"{detail}; {hint}" if hint else detail

    def _header(self, after: LinePlace, row: CsvRow, position: str) -> Step:
        try:
            return after.with_columns(distinct(names_in(row.text, self.format))), None
        except MalformedRecord as error:
            return after.with_columns(()), encode(self._letter(row.raw, str(error), position))

    def _repeats_header(self, record: Event | DeadLetter, raw: bytes, columns: tuple[str, ...]) -> bool:
        if isinstance(record, DeadLetter) and self.format.time is not None:
            # In a repeated header, the time column holds a name, not a time.
            record = replace(self.format, time=None, columns=columns).read(raw, "")
        return isinstance(record, Event) and record.fields == {name: name for name in columns}


def names_in(header: bytes, form: Format) -> list[str]:
    if len(header) > form.max_record_bytes:
        raise MalformedRecord(f"the header has {len(header)} bytes, the limit is {form.max_record_bytes}")
    if looks_utf_16(header):
        raise MalformedRecord("the header is not UTF-8")
    try:
        text = header.removeprefix(BOM).decode("utf-8")
        rows = csv_rows(text, form.delimiter)
    except UnicodeDecodeError as error:
        raise MalformedRecord(
            f"the header is not UTF-8: byte {error.start + 1} is 0x{error.object[error.start]:02x}"
        ) from None
    except MalformedRecord as error:
        raise MalformedRecord(f"the header is {error}") from None
    if not rows or not rows[0]:
        raise MalformedRecord("the header names no column")
    return rows[0]


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Repeated names get a number: `text`, `text_2`."""
    taken, columns, numbers = set(names), dict[str, None](), dict[str, int]()
    for name in names:
        free = name
        while free in columns or (free != name and free in taken):
            numbers[name] = numbers.get(name, 1) + 1
            free = f"{name}_{numbers[name]}"
        columns[free] = None
    return tuple(columns)


def unread_rest(label: str, place: LinePlace, problem: str) -> bytes:
    line = place.lines + 1
    log.warning("%s%d- was not read: %s", label, line, problem)
    letter = DeadLetter(b"", UnreadFile.cause, f"from line {line} on: {problem}", position=f"{label}{line}-")
    return encode(letter)


@dataclass(frozen=True, slots=True)
class FileCursor:
    number: int = 0
    place: LinePlace = START
    records: int = 0


def starts_of(parts: Sequence[LinePart]) -> list[int]:
    return list(accumulate((part.size for part in parts), initial=0))


class FilesReader:
    """Reads the records of `parts` in order, with a file kept open between calls. Blocks."""

    def __init__(self, parts: Sequence[LinePart], reader: LineReader) -> None:
        self._parts = parts
        self._reader = reader
        self._starts = starts_of(parts)
        self._rows: Rows | None = None
        self._at = FileCursor()

    @property
    def size(self) -> int:
        return self._starts[-1]

    def offset(self, cursor: FileCursor) -> int:
        return self._starts[cursor.number] + cursor.place.offset

    def records(
        self, cursor: FileCursor, until: int | None = None
    ) -> Iterator[tuple[FileCursor, bytes | None]]:
        """Rows after `cursor` that begin before byte `until` of all parts.

        Raises `ForebayError` if a file has changed or can no longer be read.
        """
        limit = self._reader.limit
        until = self.size if until is None else until
        while cursor.number < len(self._parts) and (limit is None or cursor.records < limit):
            part, start = self._parts[cursor.number], self._starts[cursor.number]
            place = cursor.place
            if place.offset < part.size:
                if start + place.offset >= until:
                    return
                try:
                    rows = self._rows_at(cursor)
                    row = rows.next(final=False)
                    if row is None and rows.read_bytes >= part.size:
                        row = rows.next()
                except UNREADABLE as error:
                    raise unlike_before(part, error) from None
                if row is not None:
                    after, record = self._reader.step(f"{part.name}@", place, row)
                    cursor = FileCursor(cursor.number, after, cursor.records + (record is not None))
                    self._at = cursor
                    yield cursor, record
                    continue
                problem = f"the file became shorter: from {part.size} bytes to {rows.read_bytes}"
                cursor = FileCursor(cursor.number + 1, records=cursor.records + 1)
                yield cursor, unread_rest(f"{part.name}@", place, problem)
                continue
            cursor = FileCursor(cursor.number + 1, records=cursor.records)

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    def _rows_at(self, cursor: FileCursor) -> Rows:
        if self._rows is None or cursor != self._at:
            self.close()
            part = self._parts[cursor.number]
            if cursor.place.offset and not begins_as_read(part, cursor.place, whole=False):
                raise unlike_before(part)
            self._rows, self._at = self._reader.rows(part, cursor.place), cursor
        return self._rows


def parts_of(path: Path, reader: LineReader) -> tuple[LinePart, ...]:
    """With sizes. Blocks: reads compressed files, and up to the reader's limit. Raises `SettingError`."""
    parts = tuple(sized(part) for part in files_of(path))
    if reader.limit is None:
        return parts
    found = FilesReader(parts, reader)
    try:
        for cursor, _ in found.records(FileCursor()):
            if cursor.records == reader.limit:
                if cursor.number == len(parts):
                    return parts
                last = replace(parts[cursor.number], size=cursor.place.offset)
                return (*parts[: cursor.number], last)
    finally:
        found.close()
    return parts


def header_of(part: LinePart, reader: LineReader) -> list[str] | None:
    """None if there is no row. Blocks. Raises `SettingError`."""
    try:
        rows = reader.rows(part, START)
        try:
            while (row := rows.next()) is not None:
                if row.text.removeprefix(BOM):
                    return _names_in_row(part, row, reader)
        finally:
            rows.close()
    except UNREADABLE as error:
        raise cannot_read(part.path, error) from None
    return None


def _names_in_row(part: LinePart, row: CsvRow, reader: LineReader) -> list[str]:
    try:
        if row.problem is not None:
            raise MalformedRecord(row.problem)
        return names_in(row.text, reader.format)
    except MalformedRecord as error:
        hint = encoding_hint(row.raw) if reader.encoding == UTF_8 else ""
        detail = f"{error}; {hint}" if hint else str(error)
        raise SettingError(f"the CSV header of {part.path} cannot be read: {detail}") from None


MAX_FILES = 1000
MAX_WARNINGS, MAX_NAMES, MAX_CHARS = 5, 5, 60


def columns_at(config: Files) -> tuple[str, ...]:
    """Blocks."""
    if config.format.columns:
        return config.format.columns
    found: dict[str, None] = {}
    for _, names in _headers(config):
        found.update(dict.fromkeys(distinct(names)))
    return tuple(found)


def header_warnings(config: Files) -> list[str]:
    """Blocks."""
    if config.format.kind != "csv" or config.format.columns or config.letters:
        return []
    warnings: list[str] = []
    first: tuple[str, Sequence[str]] | None = None
    for part, names in _headers(config, warnings):
        if first is None and names and names[0].strip().isdecimal():
            warnings.append(
                f"{part.name}: the first column is named {_shown(names[0])}, as if it were data; if the file "
                "has no header, name its columns: `columns: [NAME, …]`"
            )
        first = first or (part.name, names)
        warnings += compare_headers(part.name, names, *first)
    more = len(warnings) - MAX_WARNINGS
    return [*warnings[:MAX_WARNINGS], f"{more} more warnings about CSV headers"] if more > 0 else warnings


def skipped_warnings(config: Files) -> list[str]:
    """Blocks. Raises `SettingError` if a folder cannot be read."""
    found = skipped_entries(config.path)
    more = len(found) - MAX_WARNINGS
    return (
        [*found[:MAX_WARNINGS], f"{more} more links or special files that are not read"]
        if more > 0
        else found
    )


def compare_headers(name: str, names: Sequence[str], first: str, expected: Sequence[str]) -> Iterator[str]:
    renamed: dict[str, list[str]] = {}
    for column, new in zip(names, distinct(names), strict=True):
        if column != new:
            renamed.setdefault(column, []).append(new)
    for column, others in islice(renamed.items(), MAX_WARNINGS):
        named = f"{len(others) + 1} columns are named {_shown(column)}"
        yield f"{name}: {named}; the later ones are read as {_list(others)}"
    missing, added = set(expected) - set(names), set(names) - set(expected)
    if missing or added:
        parts = [f"lacks {_list(missing)}"] * bool(missing) + [f"has {_list(added)}"] * bool(added)
        yield f"{name}: {' and '.join(parts)}, unlike {first}: was a column renamed?"


def _list(names: Collection[str]) -> str:
    shown = ", ".join(map(_shown, sorted(names)[:MAX_NAMES]))
    return shown + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")


def _shown(name: str) -> str:
    return repr(name[:MAX_CHARS])


def _headers(config: Files, problems: list[str] | None = None) -> Iterator[tuple[LinePart, list[str]]]:
    reader = LineReader(config.format, True, encoding=canonical_encoding(config.encoding))
    for part in islice(files_of(config.path), MAX_FILES):
        try:
            names = header_of(part, reader)
        except SettingError as error:
            if problems is not None:
                problems.append(str(error))
            continue
        if names is not None:
            yield part, names
