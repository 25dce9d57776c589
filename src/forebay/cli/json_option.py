"""`--json`, as every command that reports takes it: `--json FILE`, or `--json -` for standard output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from typer.core import TyperCommand, TyperGroup

from forebay.cli.files import check_writable
from forebay.errors import SettingError

STDOUT = "-"
OPTIONAL_VALUES = {"--json": STDOUT, "--kafka": "local"}
"""Options whose value may be left out, and what they mean without it; Typer itself knows none."""

JsonFile = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="[FILE]",
        help="Write the report to FILE as one JSON document. With - or without FILE: to standard output, "
        "in place of the text.",
    ),
]


class Command(TyperCommand):
    """A command whose options in `OPTIONAL_VALUES` may stand without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_values(args))


class Group(TyperGroup):
    """A group whose options in `OPTIONAL_VALUES` may stand without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_values(args))


def with_values(words: list[str]) -> list[str]:
    """`words` with the value that is meant after each option that stands without one.

    A word after the option is its value unless it is itself an option.
    """
    found: list[str] = []
    for at, word in enumerate(words):
        if word == "--":
            return found + words[at:]
        found.append(word)
        after = words[at + 1] if at + 1 < len(words) else None
        if word in OPTIONAL_VALUES and (after is None or (after.startswith("-") and after != STDOUT)):
            found.append(OPTIONAL_VALUES[word])
    return found


def check_json(target: str | None) -> None:
    """Raise `SettingError` where the file of `--json` cannot be written; to be asked before the work."""
    if target == "":
        raise SettingError("--json: expected a file, or - for standard output, found an empty text")
    if target is not None and target != STDOUT:
        check_writable("--json", Path(target))


def shows_text(target: str | None) -> bool:
    """Whether the report is to be shown to a person too: not where standard output is the document's."""
    return target != STDOUT


def write_json(target: str | None, document: Any) -> None:
    """Write `document` where `--json` says: indented to a file, as one line to standard output."""
    if target is None:
        return
    if target == STDOUT:
        typer.echo(orjson.dumps(document).decode())
        return
    data = orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"
    try:
        Path(target).write_bytes(data)
    except OSError as error:
        raise SettingError(f"--json: {target} cannot be written: {error.strerror}") from None
