"""Guesses encoding and delimiter of files from their first bytes, for `forebay init` and the demo."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from forebay.connectors.files.lines import files_of
from forebay.connectors.files.source import Files
from forebay.connectors.files.unpack import MARKS, UNREADABLE, UTF_8, encoding_of, looks_utf_16
from forebay.connectors.formats import Format

HEAD_BYTES = 64 << 10
HEAD_ROWS = 20
MAX_FILES = 5
DELIMITERS = (",", ";", "\t", "|")
WESTERN = "cp1252"
LETTERS = re.compile(rb"[\x8a\x8c\x8e\x9a\x9c\x9e\x9f\xc0-\xd6\xd8-\xf6\xf8-\xff]{1,2}")
PUNCTUATION = bytes((0x80, 0x85, *range(0x91, 0x98), *range(0xA0, 0xC0)))
BEYOND_ASCII = re.compile(rb"(.?)([\x80-\xff]+)(.?)", re.S)


def guessed_settings(files: Sequence[Path], kind: str) -> dict[str, Any]:
    """`encoding` if `files` are not UTF-8, and `delimiter` if they are CSV without commas, if the first
    files agree. Blocks."""
    heads = [head for file in files[:MAX_FILES] if (head := _head(file))]
    # ASCII is the same in all encodings but wide ones.
    encodings = {_encoding(head) for head in heads if b"\0" in head or not head.isascii()}
    encoding = encodings.pop() if len(encodings) == 1 else UTF_8
    found = {} if encoding == UTF_8 else {"encoding": encoding}
    delimiters = {_delimiter(head, encoding) for head in heads} if kind == "csv" else {","}
    if len(delimiters) == 1 and delimiters != {","}:
        found["delimiter"] = delimiters.pop()
    return found


def files_with(settings: Mapping[str, Any]) -> Files:
    form = Format(settings["type"], delimiter=settings.get("delimiter", ","))
    return Files(Path(settings["path"]), form, encoding=settings.get("encoding", UTF_8))


def _head(file: Path) -> bytes:
    part = next(files_of(file), None)
    if part is None:
        return b""
    try:
        with part.open() as opened:
            return opened.read(HEAD_BYTES)
    except UNREADABLE:
        # Reading the file reports it.
        return b""


def _encoding(head: bytes) -> str:
    wide = looks_utf_16(head)
    if wide is not None:
        marked = any(head.startswith(mark) for mark, _ in MARKS)
        return wide if marked else "utf-16-be" if head[::2].count(0) > head[1::2].count(0) else "utf-16-le"
    return WESTERN if _is_western(head) else UTF_8


def _is_western(head: bytes) -> bool:
    found: list[bool] = []
    *lines, last = head.split(b"\n")
    for line in (*lines, last):
        # The last line may be cut within a character.
        decoder = codecs.getincrementaldecoder(UTF_8)()
        try:
            text = decoder.decode(line, final=line is not last or len(head) < HEAD_BYTES)
        except UnicodeDecodeError:
            for run in BEYOND_ASCII.finditer(line):
                letters = run[2].translate(None, PUNCTUATION)
                near = run[1].isalpha() or run[3].isalpha()
                found.append(not letters or (near and LETTERS.fullmatch(letters) is not None))
        else:
            if not text.isascii():
                return False
    return sum(found) > 0.9 * len(found)


def _delimiter(head: bytes, encoding: str) -> str:
    decoder = codecs.getincrementaldecoder(encoding_of(encoding, head).codec)("replace")
    text = decoder.decode(head).removeprefix("\ufeff")
    for delimiter in DELIMITERS:
        try:
            rows = [row for row in islice(_rows(text, delimiter), HEAD_ROWS) if row]
        except csv.Error:
            continue
        if len(head) == HEAD_BYTES and len(rows) < HEAD_ROWS:
            # The last row is cut.
            rows = rows[:-1]
        if not rows or len(rows[0]) < 2:
            continue
        if delimiter == "," or 2 * sum(len(row) == len(rows[0]) for row in rows) > len(rows):
            return delimiter
    return ","


def _rows(text: str, delimiter: str) -> Any:
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
