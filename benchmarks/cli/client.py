"""`python -m benchmarks client`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarks.cli.options import note, report, show_table
from forebay.cli.output import JsonFile, check_json, results_console, say


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
    given = ClientOptions(seconds=seconds, tokens=tokens, seed=seed)
    options = ClientOptions(tuple(rate or given.rates), seconds, tokens, seed=seed)
    found = measure_client(options, note)
    passed = all(run["verdict"] == "VALID" for run in found["runs"])
    report(json, found, lambda: _show(found["runs"]), passed=passed)


def _show(runs: list[dict[str, Any]]) -> None:
    show_table(
        ("requests/s", "", "schedule delay p50, p99, max, ms", "added to TTFT p50, p99, ms", "cores"),
        (
            (
                f"{run['rate_per_s']:g}",
                run["verdict"],
                ", ".join(f"{value:.2f}" for value in run["schedule_delay_ms"].values()),
                ", ".join(f"{value:.2f}" for value in list(run["added_ttft_ms"].values())[:2]),
                f"{run['client_cores']:.2f}",
            )
            for run in runs
        ),
    )
    for run in runs:
        for reason in run["reasons"]:
            say(results_console(), f"{run['rate_per_s']:g}: {reason}")
