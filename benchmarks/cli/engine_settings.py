"""`python -m benchmarks engine-settings`: compares settings of a local vLLM."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from benchmarks.cli.options import note, report, show_table
from forebay.cli.output import JsonFile, check_json, errors_console
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
    from benchmarks.engine_settings import SETTINGS, measure_settings
    from forebay.engine.launch import ConsoleProgress

    check_json(json)
    names = setting or list(SETTINGS)
    note(f"{len(names)} settings: each starts vLLM, which takes about a minute.")
    figures = []
    progress = ConsoleProgress(errors_console())
    for found in measure_settings(names, load_settings(), seconds=seconds, progress=progress):
        figures.append(asdict(found))
        note(
            f"{found.name}: {found.idle_tokens_per_s} tokens/s, with one core busy {found.busy_tokens_per_s}"
        )
    header = ("setting", "", "ready, s", "tokens/s, idle", "tokens/s, a core busy")
    report(json, figures, lambda: show_table(header, (list(each.values()) for each in figures)))
