"""`python -m benchmarks faults`: faults of one of several replicas."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from forebay.cli.output import JsonFile, check_json, errors_console, results_console, shows_text, write_json

if TYPE_CHECKING:
    from benchmarks.faults import FaultRun


def faults(
    *,
    replicas: Annotated[int, typer.Option(min=2, max=32, help="How many fake replicas.")] = 4,
    requests: Annotated[int, typer.Option(min=30, help="Requests per fault.")] = 240,
    rate: Annotated[float, typer.Option(min=1.0, help="Requests per second.")] = 100.0,
    json: JsonFile = None,
) -> None:
    """Inject five faults into one of several replicas. Exit status 1 if a request is not answered in time."""
    from benchmarks.faults import FAULTS, FaultSettings, faults_document, run_fault

    check_json(json)
    settings = FaultSettings(replicas=replicas, requests=requests, rate=rate)
    console = errors_console()
    runs = []
    for fault in FAULTS:
        with console.status(fault):
            runs.append(asyncio.run(run_fault(fault, settings)))
    document = faults_document(settings, runs)
    write_json(json, document)
    if shows_text(json):
        _show(runs)
    if not document["passed"]:
        raise typer.Exit(1)


def _show(runs: list[FaultRun]) -> None:
    table = Table("fault", "answered in time", "slowest", "there before", "from then on", "elsewhere")
    for run in runs:
        table.add_row(
            run.fault,
            f"{run.in_time} of {run.requests}",
            f"{run.slowest_s:.2f} s",
            str(run.calls_before),
            str(run.calls_after),
            str(run.others_after),
        )
    results_console().print(table)
