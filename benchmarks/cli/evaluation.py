"""`python -m benchmarks evaluation`: the tables and plots of docs/results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.output import JsonFile, check_json, results_console, say, shows_text, write_json


def evaluation(
    *,
    folder: Annotated[Path, typer.Option(help="Where the pages and the recorded files are.")] = Path(
        "docs/results"
    ),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; status 1 if something would change.")
    ] = False,
    json: JsonFile = None,
) -> None:
    """Regenerate every table and plot of docs/results from the recorded JSON files there. Takes seconds."""
    from benchmarks.evaluation import PAGES
    from benchmarks.evaluation import page as pages

    check_json(json)
    files = pages.evaluation(folder, PAGES)
    paths = pages.changed(files) if check else pages.write(files)
    write_json(json, {"files": len(files), "changed": [str(path) for path in paths]})
    if shows_text(json):
        for path in paths:
            say(results_console(), f"{path} {'differs' if check else 'written'}")
        if not paths:
            say(results_console(), f"{len(files)} files in {folder} are as recorded")
    if check and paths:
        raise typer.Exit(1)
