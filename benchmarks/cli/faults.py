"""`python -m benchmarks faults`: one replica of several goes wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from forebay.cli.files import check_writable


def faults(
    *,
    replicas: Annotated[int, typer.Option(min=2, max=32, help="How many fake replicas.")] = 4,
    requests: Annotated[int, typer.Option(min=30, help="Requests per fault.")] = 240,
    rate: Annotated[float, typer.Option(min=1.0, help="Requests per second.")] = 100.0,
    json: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Strike one of several replicas in five ways; status 1 where a request is not answered in time."""
    from benchmarks.faults import FAULTS, FaultSettings, faults_document, run_fault

    if json is not None:
        check_writable("--json", json)
    settings = FaultSettings(replicas=replicas, requests=requests, rate=rate)
    console = Console(stderr=True)
    runs = []
    for fault in FAULTS:
        with console.status(fault):
            runs.append(asyncio.run(run_fault(fault, settings)))
    document = faults_document(settings, runs)
    if json is not None:
        json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
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
    Console().print(table)
    if not document["passed"]:
        raise typer.Exit(1)
