"""`python -m benchmarks engine-settings`: compares settings of a local vLLM."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from forebay.cli.output import (
    JsonFile,
    check_json,
    errors_console,
    results_console,
    say,
    shows_text,
    write_json,
)
from forebay.settings import load_settings


def engine_settings(
    *,
    setting: Annotated[
        list[str] | None, typer.Option(help="A setting to measure; may be repeated; default: all.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each load, in seconds.")] = 8.0,
    json: JsonFile = None,
) -> None:
    """Compare settings of a local engine on this machine, idle and with one core busy. Takes minutes."""
    from rich.table import Table

    from benchmarks.engine_settings import SETTINGS, measure_settings
    from forebay.engine.launch import ConsoleProgress

    check_json(json)
    names, console = setting or list(SETTINGS), errors_console()
    say(console, f"{len(names)} settings: each starts vLLM, which takes about a minute.")
    figures = []
    for found in measure_settings(names, load_settings(), seconds=seconds, progress=ConsoleProgress(console)):
        figures.append(found)
        say(
            console,
            f"{found.name}: {found.idle_tokens_per_s} tokens/s, with one core busy {found.busy_tokens_per_s}",
        )
    write_json(json, [asdict(found) for found in figures])
    if not shows_text(json):
        return
    table = Table("setting", "", "ready, s", "tokens/s, idle", "tokens/s, a core busy")
    for found in figures:
        table.add_row(*map(str, asdict(found).values()))
    results_console().print(table)
