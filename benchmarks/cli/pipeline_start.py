"""`python -m benchmarks pipeline-start`: a new pipeline against the same requests sent without it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cli.options import note, report
from forebay.cli.output import JsonFile, check_json, results_console, say
from forebay.settings import load_settings


def pipeline_start(
    *,
    events: Annotated[int, typer.Option(min=1, help="Number of events.")] = 256,
    capacity: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds each way.")] = 1,
    json: JsonFile = None,
) -> None:
    """Run a new pipeline with long answers; status 1 if it takes 1.2 times as long as the engine alone."""
    from benchmarks.pipeline_start import PipelineStartOptions, measure_pipeline_start

    check_json(json)
    options = PipelineStartOptions(events=events, capacity=capacity, rounds=rounds)
    with tempfile.TemporaryDirectory(prefix="forebay-pipeline-start-") as folder:
        found = measure_pipeline_start(options, Path(folder), load_settings(), note)
    words = (
        f"{events} events, {capacity} at a time: {found['direct_s']:.1f} s without a pipeline, "
        f"{found['pipeline_s']:.1f} s with it, {found['ratio']:.2f} times as long"
    )
    report(json, found, lambda: say(results_console(), words), passed=found["passed"])
