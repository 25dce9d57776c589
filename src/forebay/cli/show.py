"""`forebay show`: the page of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.output import print_line, results_console
from forebay.errors import SettingError

PAGE = "page.html"


def show(
    run: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of an application, a demo, or a pipeline's results.")
    ],
) -> None:
    """Open the page that a run has written at its end, and print its path.

    Applications and demos with a browser write one, and pipelines that were run with --ui.
    """
    import webbrowser

    from forebay.cli.watch import has_browser

    page = run / PAGE if run.is_dir() else run
    if page.suffix.lower() not in (".html", ".htm") or not page.is_file():
        raise SettingError(
            f"forebay show {run}: expected an HTML page, or a folder with {PAGE}; a run writes it at its "
            f"end, an application always and a pipeline file with --ui"
        )
    address = page.resolve().as_uri()
    print_line(results_console(), address)
    if has_browser():
        webbrowser.open(address)
