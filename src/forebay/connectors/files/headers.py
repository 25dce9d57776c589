"""Check the headers of CSV files: repeated names, and columns that not all files have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from forebay.connectors.encodings import canonical_encoding
from forebay.connectors.files.lines import LinePart, files_of
from forebay.connectors.files.reader import LineReader, distinct, header_of
from forebay.errors import SettingError

if TYPE_CHECKING:
    from forebay.connectors.files.source import Files

MAX_FILES = 1000
"""Files that are checked before the start."""
MAX_WARNINGS, MAX_NAMES, MAX_CHARS = 5, 5, 60


def columns_at(config: Files) -> tuple[str, ...]:
    """The names in the first `MAX_FILES` files. Blocks."""
    if config.format.columns:
        return config.format.columns
    found: dict[str, None] = {}
    for _, names in _headers(config):
        found.update(dict.fromkeys(distinct(names)))
    return tuple(found)


def header_warnings(config: Files) -> list[str]:
    """At most `MAX_WARNINGS`, also about unreadable headers, and a count of the rest. Blocks."""
    if config.format.kind != "csv" or config.format.columns or config.letters:
        return []
    warnings: list[str] = []
    first: tuple[str, Sequence[str]] | None = None
    for part, names in _headers(config, warnings):
        first = first or (part.name, names)
        warnings += compare_headers(part.name, names, *first)
    more = len(warnings) - MAX_WARNINGS
    return [*warnings[:MAX_WARNINGS], f"{more} more warnings about CSV headers"] if more > 0 else warnings


def compare_headers(name: str, names: Sequence[str], first: str, expected: Sequence[str]) -> Iterator[str]:
    """Repeated columns, and differences from the header of file `first`, in any order."""
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
