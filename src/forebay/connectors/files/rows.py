"""Lines into records: each line is one, but a CSV row goes on while a quote is open."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forebay.codec import encode
from forebay.connectors.formats import BOM, Format
from forebay.connectors.json_lines import parse_dead_letter
from forebay.errors import MalformedRecord
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
    letter, whose untouched record is read; a record without a time has the letter's. `limit`: records
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
        time_ms = None
        if self.letters:
            try:
                letter = parse_dead_letter(raw)
                raw, time_ms = letter.raw, letter.time_ms
            except MalformedRecord as error:
                letter = DeadLetter(raw=raw, cause=error.cause, detail=str(error), position=position)
                return Progress(at.lines, at.records + 1), encode(letter)
        record = self.format.read(raw, position)
        if record.time_ms is None and time_ms is not None:
            record = replace(record, time_ms=time_ms)
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
