"""`forebay bench engine`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from forebay.cli.files import check_writable
from forebay.engine.launch import ConsoleProgress
from forebay.settings import load_settings


def engine_settings(
    *,
    setting: Annotated[list[str] | None, typer.Option(help="Which; may be repeated; default: all.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long each load is.")] = 8.0,
    json: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Compare settings of a local engine on this machine, idle and with one core kept busy; minutes."""
    from forebay.bench.engine_settings import SETTINGS, measure_settings

    if json is not None:
        check_writable("--json", json)
    names, console = setting or list(SETTINGS), Console(stderr=True)
    console.print(f"{len(names)} settings: each starts vLLM, about a minute.", highlight=False)
    figures = []
    for found in measure_settings(names, load_settings(), seconds=seconds, progress=ConsoleProgress(console)):
        figures.append(found)
        console.print(
            f"{found.name}: {found.idle_tokens_per_s} tokens/s, with a core busy {found.busy_tokens_per_s}",
            highlight=False,
        )
    table = Table("setting", "", "ready, s", "tokens/s, idle", "tokens/s, a core busy")
    for found in figures:
        table.add_row(*map(str, asdict(found).values()))
    Console().print(table)
    if json is not None:
        json.write_bytes(orjson.dumps([asdict(found) for found in figures], option=orjson.OPT_INDENT_2))
