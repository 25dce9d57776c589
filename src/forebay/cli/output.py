"""What commands print and write: consoles that show every text as it is, and `--json`, as every command that
reports takes it: `--json FILE`, or `--json -` for standard output.

Rich takes `[x]` for markup and `:x:` for an emoji. Neither may happen to a text that is not ours, and in ours
there is none, so no console of a command knows either.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from typer.core import TyperCommand, TyperGroup

from forebay.errors import SettingError
from forebay.untrusted_text import replace_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def results_console() -> Console:
    """Standard output."""
    return _console(stderr=False)


def errors_console() -> Console:
    """Standard error: progress and messages."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def say(console: Console, words: str | Text, *, style: str | None = None) -> None:
    """Print `words` whole, whatever the terminal's width; control characters in a `str` are replaced."""
    shown = replace_controls(words) if isinstance(words, str) else words
    console.print(shown, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def check_writable(option: str, path: Path) -> None:
    """Raise `SettingError` where `path` cannot be written as a file; writes nothing itself."""
    if path.is_dir():
        raise SettingError(f"{option}: expected a file, found the folder {path}")
    if not path.parent.is_dir():
        raise SettingError(f"{option}: there is no folder {path.parent} to write {path.name} to")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SettingError(f"{option}: {path} cannot be written: no permission")


def check_distinct(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """Raise `SettingError` where a file that is to be `written` is also `read`, or written twice. Both are by
    what names them on the command line; None: not given."""
    seen = {path.resolve(): name for name, path in read.items() if path is not None}
    for name, path in written.items():
        if path is None:
            continue
        place = path.resolve()
        if place in seen:
            raise SettingError(f"{name}: {path} is also {seen[place]}; name another file")
        seen[place] = name


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
