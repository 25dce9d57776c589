"""Guesses settings of files from their first bytes, for commands that get a file and no settings."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from forebay.connectors.files.lines import files_of
from forebay.connectors.files.source import Files
from forebay.connectors.files.unpack import UNREADABLE, UTF_8, looks_utf_16
from forebay.connectors.formats import Format

HEAD_BYTES = 64 << 10
HEAD_ROWS = 20
DELIMITERS = (",", ";", "\t", "|")
EIGHT_BIT = "cp1252"
"""The usual encoding of Western European Windows."""


def guessed_settings(path: Path, kind: str) -> dict[str, Any]:
    """`encoding` if the first file at `path` is not UTF-8, and `delimiter` if it is CSV without commas.

    Blocks on the file system.
    """
    head = _head(path)
    encoding = looks_utf_16(head) or (UTF_8 if _is_utf_8(head) else EIGHT_BIT)
    found = {} if encoding == UTF_8 else {"encoding": encoding}
    if kind == "csv":
        lines = codecs.getincrementaldecoder(encoding)("replace").decode(head).splitlines(keepends=True)
        whole = lines[:-1] if len(head) == HEAD_BYTES else lines
        delimiter = next((each for each in DELIMITERS if _divides(each, whole)), ",")
        found |= {} if delimiter == "," else {"delimiter": delimiter}
    return found


def files_with(settings: Mapping[str, Any]) -> Files:
    form = Format(settings["type"], delimiter=settings.get("delimiter", ","))
    return Files(Path(settings["path"]), form, encoding=settings.get("encoding", UTF_8))


def _head(path: Path) -> bytes:
    part = next(files_of(path), None)
    if part is None:
        return b""
    try:
        with part.open() as file:
            return file.read(HEAD_BYTES)
    except UNREADABLE:
        # Reading the file reports it.
        return b""


def _is_utf_8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder(UTF_8)().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _divides(delimiter: str, lines: list[str]) -> bool:
    """Whether the first rows have the same number of columns, at least two."""
    try:
        widths = {len(row) for row in islice(csv.reader(lines, delimiter=delimiter), HEAD_ROWS) if row}
    except csv.Error:
        return False
    return len(widths) == 1 and min(widths) > 1
