"""`python -m benchmarks NAME`: the measurements behind Forebay's claims."""

from __future__ import annotations

import typer

from benchmarks.cli.applications import applications
from benchmarks.cli.autoscale import autoscale
from benchmarks.cli.batching import batching, burst
from benchmarks.cli.client import client
from benchmarks.cli.cost import cost
from benchmarks.cli.disaggregation import disaggregation
from benchmarks.cli.engine_settings import engine_settings
from benchmarks.cli.evaluation import evaluation
from benchmarks.cli.faults import faults
from benchmarks.cli.gateway_bench import gateway_bench
from benchmarks.cli.grid import grid
from benchmarks.cli.http_calls import http_calls
from benchmarks.cli.interplay import interplay
from benchmarks.cli.known_times import known_times
from benchmarks.cli.kubernetes import kubernetes
from benchmarks.cli.overhead import overhead
from benchmarks.cli.peers import peers
from benchmarks.cli.pipeline_start import pipeline_start
from benchmarks.cli.ray_fleet import ray_fleet
from benchmarks.cli.recovery import kafka, recovery
from benchmarks.cli.routing import overload, routing
from benchmarks.cli.scaling import scaling
from benchmarks.cli.slowdown import slowdown
from benchmarks.cli.tools_agreement import tools_agreement
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
        overhead,
        cost,
        batching,
        burst,
        grid,
        interplay,
        autoscale,
        recovery,
        kafka,
        routing,
        overload,
        applications,
        faults,
        scaling,
        kubernetes,
        slowdown,
        client,
        peers,
        disaggregation,
    ):
        app.command(cls=Command)(measure)
    app.command(cls=Command)(evaluation)
    app.command(name="engine-settings", cls=Command)(engine_settings)
    app.command(name="gateway", cls=Command)(gateway_bench)
    app.command(name="http-calls", cls=Command)(http_calls)
    app.command(name="pipeline-start", cls=Command)(pipeline_start)
    app.command(name="ray", cls=Command)(ray_fleet)
    app.command(name="known-times", cls=Command)(known_times)
    app.command(name="tools-agreement", cls=Command)(tools_agreement)
    return app


if __name__ == "__main__":
    serve(application())
