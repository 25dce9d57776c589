"""`python -m benchmarks http-calls`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from forebay.cli.output import (
    JsonFile,
    check_json,
    errors_console,
    results_console,
    say,
    shows_text,
    write_json,
)


def http_calls(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="How often each client is measured.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each measurement.")] = 5.0,
    chunks: Annotated[int, typer.Option(min=1, help="Pieces of each answer.")] = 4,
    json: JsonFile = None,
) -> None:
    """Measure the processor time of a streamed call with Forebay's HTTP client, with aiohttp, and with
    pyreqwest if it is installed."""
    from benchmarks.http_calls import HttpCallsOptions, measure_http_calls

    check_json(json)
    console = errors_console()
    options = HttpCallsOptions(rounds, seconds, chunks=chunks)
    found = measure_http_calls(options, lambda words: say(console, words))
    write_json(json, found)
    if not shows_text(json):
        return
    table = Table("milliseconds of processor a call, median", box=None)
    for load in found["loads"]:
        rate = "as many as it makes" if load["per_s"] is None else f"{load['per_s']:g} calls/s"
        table.add_column(rate, justify="right")
        table.add_column("of aiohttp", justify="right")
    for name in found["clients"]:
        cells = []
        for load in found["loads"]:
            ms = load["median"]
            cells += [f"{ms[name]:.3f}", f"{ms[name] / ms['aiohttp']:.2f}"]
        table.add_row(name, *cells)
    results_console().print(table)
