"""Options and checks shared by several commands of `python -m benchmarks`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from forebay.cli.output import check_writable, errors_console, results_console, say, shows_text, write_json

INTERRUPTED = 130
"""Exit status after Ctrl-C."""

Url = Annotated[
    str | None, typer.Option(help="A server that runs already, instead of a vLLM started by this command.")
]
Dtype = Annotated[
    str | None, typer.Option(help="Number type of the model; default: the processor's fastest.")
]
Cores = Annotated[str | None, typer.Option(help="Cores that an engine may use, such as 0-3.")]
Plot = Annotated[Path | None, typer.Option(help="Draw the figures to this SVG file.")]


def check_plot(path: Path | None) -> None:
    """Raise `SettingError` if a plot cannot be drawn to `path`; None: no plot."""
    from forebay.pages.picture import check_picture

    if path is not None:
        check_writable("--plot", path)
        check_picture(path)


def command_line() -> tuple[str, ...]:
    """The words of this command, for the provenance of its figures."""
    return ("python", "-m", "benchmarks", *sys.argv[1:])


def note(words: str) -> None:
    """Print a line about the progress to standard error."""
    say(errors_console(), words)


def report(
    json: str | None, document: Any, show: Callable[[], None] = lambda: None, *, passed: bool = True
) -> None:
    """Write the document, and show it unless JSON goes to standard output. Exit status 1 unless `passed`."""
    write_json(json, document)
    if shows_text(json):
        show()
    if not passed:
        raise typer.Exit(1)


def show_table(header: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print a table; None is a dash. Without rows, print nothing."""
    from rich.table import Table

    if not (rows := list(rows)):
        return
    table = Table(*header, box=None, title=title, title_justify="left")
    for row in rows:
        table.add_row(*("–" if cell is None else str(cell) for cell in row))
    results_console().print(table)


def digits(value: float | None, form: str) -> str | None:
    """A figure in a format such as `.2f`; None if it is unknown."""
    return None if value is None else format(value, form)
