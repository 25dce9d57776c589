"""`forebay run`: run a pipeline file."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from forebay.cli.live import LiveLine, report
from forebay.engine.launch import ConsoleProgress, local_replicas
from forebay.errors import SettingError
from forebay.settings import load_settings


def run(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline file (YAML).")],
    *,
    engine: Annotated[
        list[str] | None, typer.Option(help="URL of an engine, instead of the file's; may be repeated.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; forget the checkpoints.")] = False,
    cluster: Annotated[str | None, typer.Option(help="HOST:PORT of a running Flink cluster.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document at the end.")] = False,
) -> None:
    """Run a pipeline until its source ends, or Ctrl-C; it resumes where it stopped."""
    from forebay.pipelines.load import load_spec
    from forebay.pipelines.run import Engine, RunOptions, run_pipeline
    from forebay.pipelines.spec import StdoutSink

    spec = load_spec(pipeline)
    if json and isinstance(spec.sink, StdoutSink):
        raise SettingError("--json: expected a jsonl sink, found stdout; standard output holds the results")
    settings = load_settings()
    errors = Console(stderr=True)
    local = not engine and spec.engine.replicas() is None
    place: Engine = (
        local_replicas(settings=settings, progress=ConsoleProgress(errors))
        if local
        else nullcontext(engine or [])
    )
    options = RunOptions(fresh=fresh, cluster=cluster)
    try:
        with LiveLine(errors) as line:
            last = run_pipeline(spec, place, options, settings, line.show)
    except KeyboardInterrupt:
        errors.print("stopped; the same command goes on from the newest checkpoint", highlight=False)
        raise
    report(last, json=json, console=errors)
