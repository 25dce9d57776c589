"""Options and checks shared by several commands of `python -m benchmarks`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from forebay.cli import output
from forebay.cli.options import option
from forebay.cli.output import (
    check_json,
    check_writable,
    errors_console,
    results_console,
    shows_text,
    write_json,
)
from forebay.errors import SettingError

INTERRUPTED = 130
"""Exit status after Ctrl-C."""

Url = Annotated[str | None, option("A server that runs already, instead of a vLLM started by this command.")]
Dtype = Annotated[str | None, option("Number type of the model; default: the processor's fastest.")]
Cores = Annotated[str | None, option("Cores that an engine may use, such as 0-3.")]
Quick = Annotated[bool, option("Fewer and shorter loads: less accurate.", "--quick")]
Seed = Annotated[int, option("Seed of all that is random.")]
Trace = Annotated[Path, option("Requests in Mooncake's or Azure's format.")]
CalibratedEngine = Annotated[str, option("A calibrated engine: llama-8b or qwen-32b.")]
Plot = Annotated[Path | None, option("Draw the figures to this SVG file.")]


def check_report_files(json: str | None, plot: Path | None = None) -> None:
    """Raise `SettingError` if the report or the plot cannot be written."""
    from forebay.pages.picture import check_picture

    check_json(json)
    if plot is not None:
        check_writable("--plot", plot)
        check_picture(plot)


def command_line() -> tuple[str, ...]:
    """The words of this command, for the provenance of its figures."""
    return ("python", "-m", "benchmarks", *sys.argv[1:])


def check_known(option: str, given: Iterable[str] | None, known: Iterable[str]) -> None:
    if unknown := set(given or ()) - set(known):
        raise SettingError(f"{option}: expected one of {', '.join(known)}; found {min(unknown)[:80]!r}")


def provenance(**known: Any) -> dict[str, Any]:
    """Where figures of this command come from."""
    from forebay.bench.provenance import provenance as origin

    return origin(command=command_line(), **known)


def note(words: str) -> None:
    """Print a line about the progress to standard error."""
    output.print_line(errors_console(), words)


def report(
    json: str | None,
    document: Any,
    show: Callable[[], None],
    *,
    more_files: Callable[[], None] = lambda: None,
    passed: bool = True,
    complete: bool = True,
) -> None:
    """Write the document, then more files, and show it unless JSON goes to standard output. Exit status 1
    unless `passed`, and 130 unless `complete`."""
    write_json(json, document)
    more_files()
    if shows_text(json):
        show()
    if not complete:
        raise typer.Exit(INTERRUPTED)
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
