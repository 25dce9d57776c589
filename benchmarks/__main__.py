"""`python -m benchmarks NAME`: the measurements behind Forebay's claims."""

from __future__ import annotations

import typer

from benchmarks.cli.batching import batching, burst
from benchmarks.cli.fleet import overload, ray, routing, slowdown
from benchmarks.cli.grid import grid
from benchmarks.cli.overhead import cost, gateway, overhead
from benchmarks.cli.peers import evaluation, peers
from benchmarks.cli.scaling import autoscale, kubernetes
from benchmarks.cli.soak import soak
from benchmarks.cli.streams import applications, kafka, recovery
from benchmarks.cli.tools import client, http_calls, known_times
from forebay.cli import serve
from forebay.cli.output import Command


def application() -> typer.Typer:
    app = typer.Typer(
        help="Measure what Forebay promises.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for measure in (
        overhead, cost, batching, burst, grid, autoscale, recovery, kafka, routing, overload, applications,
        kubernetes, ray, slowdown, peers, evaluation, gateway, client, http_calls, known_times, soak,
    ):  # fmt: skip
        app.command(cls=Command)(measure)
    return app


if __name__ == "__main__":
    serve(application())
