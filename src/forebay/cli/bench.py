"""`forebay bench`: measure a server, a pipeline, and compare and show recorded runs."""

from __future__ import annotations

import typer

from forebay.cli.bench_compare import compare_runs
from forebay.cli.bench_goodput import goodput
from forebay.cli.bench_report import report_run
from forebay.cli.bench_serve import serve
from forebay.cli.bench_stream import stream
from forebay.cli.output import Command

bench = typer.Typer(help="Measure an engine or a pipeline, and compare runs.", no_args_is_help=True)
bench.command(cls=Command)(serve)
bench.command(cls=Command)(stream)
bench.command(cls=Command)(goodput)
bench.command(name="report")(report_run)
bench.command(name="compare", cls=Command)(compare_runs)
