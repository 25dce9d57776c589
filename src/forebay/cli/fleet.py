"""`forebay fleet status`: the scaled replicas of runs on this machine, and why there are that many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from forebay.cli.output import (
    Command,
    JsonFile,
    check_json,
    check_writable,
    results_console,
    say,
    shows_text,
    write_json,
)
from forebay.errors import SettingError
from forebay.settings import load_settings
from forebay.untrusted_text import counted

fleet = typer.Typer(help="Replicas that runs scale.", no_args_is_help=True)


@fleet.callback()
def _fleet() -> None:
    """Keeps `status` a subcommand, although it is the only one."""


@fleet.command(cls=Command)
def status(
    *,
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot the run over time to this SVG file."),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Show runs on this machine that scale their replicas: state, load and last decision."""
    from forebay.pages.picture import check_picture, write_picture
    from forebay.pipeline.scaling_record import course_picture, read_course, running_statuses

    check_json(json)
    if plot is not None:
        check_writable("--plot", plot)
        check_picture(plot)
    found = list(running_statuses(load_settings()))
    if plot is not None:
        if len(found) != 1:
            raise SettingError(f"--plot: expected one run that scales its replicas, found {len(found)}")
        course = read_course(Path(found[0]["course"]))
        write_picture(plot, course_picture(course, str(found[0]["pipeline"])))
    write_json(json, {"runs": found})
    if shows_text(json):
        _show(found)


def _show(runs: list[dict[str, Any]]) -> None:
    from rich.table import Column, Table

    console = results_console()
    if not runs:
        say(console, "No run scales its replicas. Start one with `forebay run PIPELINE --replicas 0..2`.")
    for run in runs:
        decision = run["decision"]
        say(
            console,
            f"{run['pipeline']} (process {run['pid']}): {decision['ready']} ready, {decision['wanted']} "
            f"wanted; {counted(decision['waiting'], 'record')} waiting, {decision['running']:.0f} at "
            f"replicas",
        )
        say(console, f"  {decision['reason']}" + (f"; {decision['failure']}" if decision["failure"] else ""))
        names = ("url", "state", "since_s", "in_flight", "cores", "log")
        table = Table(*(Column(name, overflow="fold") for name in names), box=None)
        for row in run["replicas"]:
            table.add_row(*(str(row[name]) for name in names))
        if run["replicas"]:
            console.print(table)
