"""`python -m benchmarks client`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from rich.console import Console


def client(
    *,
    rate: Annotated[
        list[float] | None, typer.Option(help="Requests per second; may be repeated: 250, 500, 1000.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each run.")] = 10.0,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer, one an event.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the arrivals.")] = 0,
    json: JsonFile = None,
) -> None:
    """Measure the load client on one core, with a scripted server on another. Exit status 1 if it misses a
    rate."""
    from benchmarks.client import ClientOptions, measure_client

    check_json(json)
    console = errors_console()
    given = ClientOptions(seconds=seconds, tokens=tokens, seed=seed)
    options = ClientOptions(tuple(rate or given.rates), seconds, tokens, seed=seed)
    found = measure_client(options, lambda words: say(console, words))
    write_json(json, found)
    if shows_text(json):
        _show(found, results_console())
    if any(run["verdict"] == "INVALID" for run in found["runs"]):
        raise typer.Exit(1)


def _show(found: dict[str, Any], console: Console) -> None:
    table = Table(
        "requests/s", "", "schedule delay p50, p99, max", "added to TTFT p50, p99", "cores", box=None
    )
    for run in found["runs"]:
        delay, added = run["schedule_delay_ms"], run["added_ttft_ms"]
        table.add_row(
            f"{run['rate_per_s']:g}",
            run["verdict"],
            ", ".join(f"{delay[name]:.2f}" for name in delay) + " ms",
            ", ".join(f"{added[name]:.2f}" for name in list(added)[:2]) + " ms",
            f"{run['client_cores']:.2f}",
        )
    console.print(table)
    for run in found["runs"]:
        for reason in run["reasons"]:
            say(console, f"{run['rate_per_s']:g}: {reason}")
