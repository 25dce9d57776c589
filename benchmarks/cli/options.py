"""Options and checks shared by several commands of `python -m benchmarks`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.output import check_writable

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
