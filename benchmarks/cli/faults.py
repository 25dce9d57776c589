"""`python -m benchmarks faults`: faults of one of several replicas."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.cli.options import report, show_table
from forebay.cli.output import JsonFile, check_json, errors_console

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
    report(json, document, lambda: _show(runs), passed=document["passed"])


def _show(runs: list[FaultRun]) -> None:
    show_table(
        ("fault", "answered in time", "slowest, s", "there before", "from then on", "elsewhere"),
        (
            (
                run.fault,
                f"{run.in_time} of {run.requests}",
                f"{run.slowest_s:.2f}",
                *(run.calls_before, run.calls_after, run.others_after),
            )
            for run in runs
        ),
    )
