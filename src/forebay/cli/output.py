"""Terminal output and `--json`: consoles that print texts unchanged, and writing a command's report.

Rich treats `[x]` as markup and `:x:` as an emoji. Untrusted texts may contain both and ours use neither, so
both are off.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from typer.core import TyperCommand, TyperGroup

from forebay.cli.options import option
from forebay.errors import SettingError
from forebay.json_numbers import dump_json
from forebay.untrusted_text import PlainFormatter, replace_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def results_console() -> Console:
    return _console(stderr=False)


def errors_console() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def print_line(console: Console, text: str | Text, *, style: str | None = None) -> None:
    """Print `text` without wrapping; control characters in a `str` are replaced."""
    shown = replace_controls(text) if isinstance(text, str) else text
    console.print(shown, style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)


def log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


@contextmanager
def blamed(option: str) -> Iterator[None]:
    """Name `option` in a `SettingError` that the block raises."""
    try:
        yield
    except SettingError as error:
        raise SettingError(f"{option}: {error}") from None


def check_writable(option: str, path: Path) -> None:
    """Raise `SettingError` if `path` is not a writable file. Writes nothing."""
    if path.is_dir():
        raise SettingError(f"{option}: expected a file, found the folder {path}")
    if not path.parent.is_dir():
        raise SettingError(f"{option}: there is no folder {path.parent} to write {path.name} to")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SettingError(f"{option}: {path} cannot be written: permission denied")


def check_distinct(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """Raise `SettingError` if a file, by its option's name, would be written twice or also read."""
    seen = {path.resolve(): name for name, path in read.items() if path is not None}
    for name, path in written.items():
        if path is None:
            continue
        place = path.resolve()
        if place in seen:
            raise SettingError(f"{name}: {path} is also {seen[place]}; name another file")
        seen[place] = name


STDOUT = "-"
OPTIONAL_VALUES = {"--json": STDOUT, "--kafka": "local", "--ui": "0"}
"""Options whose value is optional, and the value then used. Typer does not support this."""
NUMBERS = frozenset(("--ui",))
"""Those of them whose value is a number."""

JsonFile = Annotated[
    str | None,
    option(
        "Write the report to FILE as one JSON document. With - or without FILE: to standard output, "
        "instead of the text.",
        "--json",
        metavar="[FILE]",
    ),
]


PagePort = Annotated[
    str | None,
    option(
        "Show the run in a browser, refreshed while it runs, on this machine only: at a free port, or "
        "this one.",
        "--ui",
        metavar="[PORT]",
    ),
]


class Command(TyperCommand):
    """A command whose options in `OPTIONAL_VALUES` may be given without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_values(args))


class Group(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_values(args))


def with_values(arguments: list[str]) -> list[str]:
    """Add the default value after each option that no value follows (of `NUMBERS`, no number)."""
    found: list[str] = []
    for at, word in enumerate(arguments):
        if word == "--":
            return found + arguments[at:]
        found.append(word)
        after = arguments[at + 1] if at + 1 < len(arguments) else None
        without = after is None or (after.startswith("-") and after != STDOUT)
        if word in OPTIONAL_VALUES and (without or (word in NUMBERS and not str(after).isdigit())):
            found.append(OPTIONAL_VALUES[word])
    return found


def port_of(given: str | None) -> int | None:
    """The port of `--ui`; None without it. Raises `SettingError`."""
    if given is not None and (not given.isdecimal() or int(given) > 65_535):
        raise SettingError(f"--ui: expected a port, found {given[:80]!r}")
    return None if given is None else int(given)


def check_json(target: str | None) -> None:
    """Raise `SettingError` if the file of `--json` cannot be written. Call it before the work."""
    if target == "":
        raise SettingError("--json: expected a file, or - for standard output; found an empty text")
    if (path := json_path(target)) is not None:
        check_writable("--json", path)


def json_path(target: str | None) -> Path | None:
    """The file of `--json`; None without one."""
    return None if target in (None, STDOUT) else Path(str(target))


def check_outputs(
    json: str | None,
    written: Mapping[str, Path | None],
    read: Mapping[str, Path | None],
    more: tuple[str, Callable[[Path], Path]] | None = None,
) -> None:
    """Raise `SettingError` if an output cannot be written, or is also another output or an input.

    `more`: the name of a second file that --json writes, and its path from that of the first.
    """
    check_json(json)
    for name, path in written.items():
        if path is not None:
            check_writable(name, path)
    document = json_path(json)
    second = {} if more is None or document is None else {f"the {more[0]} of --json": more[1](document)}
    check_distinct({"--json": document, **second, **written}, read)


def shows_text(target: str | None) -> bool:
    return target != STDOUT


def write_file(option: str, path: Path, data: bytes) -> None:
    """Raise `SettingError` if `path`, the value of `option`, cannot be written."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise SettingError(f"{option}: {path} cannot be written: {error.strerror}") from None


def folded_table(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Table:
    """The columns `names` of `rows`; long values continue on the next line."""
    from rich.table import Column, Table

    table = Table(*(Column(name, overflow="fold") for name in names), box=None)
    for row in rows:
        table.add_row(*(str(row[name]) for name in names))
    return table


def print_report(target: str | None, document: Any, show: Callable[[Console], None]) -> None:
    """Write `document` as `--json` asks, and print the text unless the document goes to standard output."""
    write_json(target, document)
    if shows_text(target):
        show(results_console())


def write_json(target: str | None, document: Any) -> None:
    """Write `document` to `target`: indented to a file, as one line to standard output."""
    if target is None:
        return
    if target == STDOUT:
        typer.echo(dump_json(document).decode())
        return
    write_file("--json", Path(target), dump_json(document, option=orjson.OPT_INDENT_2) + b"\n")
