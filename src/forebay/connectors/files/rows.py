"""Split a file into rows: one line each; in CSV, several lines if a quoted field spans them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from forebay.connectors.files.lines import Line, LineFile, LinePlace
from forebay.connectors.formats import BOM
from forebay.untrusted_text import counted

QUOTE = b'"'
MAX_ROW_LINES = 10_000
MAX_ROW_BYTES = 16 << 20
"""Limits of the search for a closing quote."""

Quote = Literal["closed", "open", "misplaced"]
"""At the end of a line: no quoted field is open, one is open, or text follows a closing quote."""


@dataclass(frozen=True, slots=True)
class CsvRow:
    """UTF-8 without the newline. `number`: first line, from 1. `raw`: bytes in the file, cut by
    `cut_bytes`. `problem`: why it is not a record, if known.
    """

    number: int
    text: bytes
    raw: bytes
    problem: str | None
    after: LinePlace
    cut_bytes: int = 0


class Rows:
    """The rows of a file from a place on. Blocks on the file system; raises as `LineFile`.

    `delimiter`: of CSV; None: each line is a row. If a quoted field is not closed within `MAX_ROW_LINES`
    lines and `MAX_ROW_BYTES` bytes, or text follows its closing quote, only the row's first line is lost: it
    becomes a row with a problem, and the second line begins the next row. Each line is scanned at most twice.
    """

    def __init__(self, file: LineFile, delimiter: str | None) -> None:
        self._file = file
        self._delimiter = None if delimiter is None else delimiter.encode()
        self._ahead: deque[Line] = deque()
        # Lines after the first that do not close its open quote, and the bytes of all these lines.
        self._open = 0
        self._bytes = 0
        # How the line after these ends the quote, once known.
        self._end: Quote | None = None

    def next(self, *, final: bool = True) -> CsvRow | None:
        """The next row; None at the end of the file.

        `final=False`: the file may grow, so an incomplete last row is not returned. To continue, read again
        from the place after the last row.
        """
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
        """Whether an incomplete row follows the last one."""
        return bool(self._ahead)

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
            return CsvRow(first.after.lines, text, text, problem, first.after, first.cut_bytes)
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
    """`inside`: a quoted field is open at the start of the line.

    As in Python's csv module, a quote opens a field only as its first character.
    """
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
