"""`python -m benchmarks slowdown`: an engine that becomes 10 and 50 times slower, and fast again."""

from __future__ import annotations

import tempfile
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cli.options import note, show_table
from forebay.cli.output import STDOUT, JsonFile, check_json, results_console, say, shows_text, write_json
from forebay.settings import load_settings


class Kind(str, Enum):
    streaming = "streaming"
    whole = "whole"
    long = "long"
    long_whole = "long whole"
    shared = "shared"
    shared_whole = "shared whole"


def slowdown(
    *,
    replica: Annotated[
        list[Kind] | None,
        typer.Option(help="How the scripted replica answers; may be repeated. Default: streaming, whole."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Forty seconds per speed, not two minutes.")] = False,
    json: JsonFile = None,
) -> None:
    """Run a pipeline on an engine at speed 1, 1/10, 1/50 and back. Exit status 1 if too few events are
    answered."""
    from benchmarks.slowdown import SlowdownOptions, measure_slowdown

    check_json(json)
    runs: list[dict[str, Any]] = []
    for kind in replica or (Kind.streaming, Kind.whole):
        step_s = 40.0 if quick else 120.0
        with tempfile.TemporaryDirectory(prefix="forebay-slowdown-") as folder:
            run = measure_slowdown(
                SlowdownOptions(replica=kind.value, step_s=step_s),
                Path(folder),
                load_settings(),
                note,
            )
        runs.append(run)
        if json is not None and json != STDOUT:
            # Keep what was measured so far, in case a later run fails.
            write_json(json, {"runs": runs})
        if shows_text(json):
            _show(run)
    if json == STDOUT:
        write_json(json, {"runs": runs})
    if not all(run["passed"] for run in runs):
        raise typer.Exit(1)


def _show(run: dict[str, Any]) -> None:
    names = ("calls", "thrown_away", "retries", "held_mean", "held_max")
    show_table(
        ("speed", "goodput", "answers/s", *(name.replace("_", " ") for name in names)),
        (
            (
                f"{step['speed']:g}",
                *(f"{step[name]:.2f}" for name in ("goodput", "answers_per_s")),
                *(step[name] for name in names),
            )
            for step in run["steps"]
        ),
        run["replica"],
    )
    letters = ", ".join(f"{count} {cause}" for cause, count in run["dead_letters"].items()) or "none"
    say(
        results_console(),
        f"{run['results']} results, {run['doubled']} twice; dead letters: {letters}; thrown away "
        f"{run['thrown_away']} of {run['calls']} calls ({100 * run['thrown_away_share']:.1f} %)",
    )
