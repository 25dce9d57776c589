"""`forebay gateway`, and `forebay fleet status`: the scaled replicas of runs on this machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.options import option
from forebay.cli.output import (
    Command,
    JsonFile,
    check_json,
    check_outputs,
    folded_table,
    log_to_stderr,
    print_line,
    print_report,
)
from forebay.errors import SettingError, SetupError
from forebay.settings import load_settings
from forebay.untrusted_text import counted

if TYPE_CHECKING:
    from rich.console import Console

fleet = typer.Typer(help="Replicas that runs scale.", no_args_is_help=True)


@fleet.callback()
def _fleet() -> None:
    """Keeps `status` a subcommand, although it is the only one."""


@fleet.command(cls=Command)
def status(
    *,
    plot: Annotated[Path | None, option("Plot the run over time to this SVG file.")] = None,
    json: JsonFile = None,
) -> None:
    """Show runs on this machine that scale their replicas: state, load and last decision."""
    from forebay.pages.picture import check_picture, write_picture
    from forebay.pipeline.scaling_record import course_picture, read_course, running_statuses

    check_outputs(json, {"--plot": plot}, {})
    if plot is not None:
        check_picture(plot)
    found = list(running_statuses(load_settings()))
    if plot is not None:
        if len(found) != 1:
            raise SettingError(f"--plot: expected one run that scales its replicas, found {len(found)}")
        course = read_course(Path(found[0]["course"]))
        write_picture(plot, course_picture(course, str(found[0]["pipeline"])))
    print_report(json, {"runs": found}, lambda console: _show(found, console))


def _show(runs: list[dict[str, Any]], console: Console) -> None:
    if not runs:
        print_line(
            console, "No run scales its replicas. Start one with `forebay run PIPELINE --replicas 0..2`."
        )
    for run in runs:
        decision = run["decision"]
        print_line(
            console,
            f"{run['pipeline']} (process {run['pid']}): {decision['ready']} ready, {decision['wanted']} "
            f"wanted; {counted(decision['waiting'], 'record')} waiting, {decision['running']:.0f} at "
            f"replicas",
        )
        print_line(
            console, f"  {decision['reason']}" + (f"; {decision['failure']}" if decision["failure"] else "")
        )
        if run["replicas"]:
            names = ("url", "state", "since_s", "in_flight", "cores", "log")
            console.print(folded_table(names, run["replicas"]))


PACKAGES = frozenset(("uvicorn", "httptools", "prometheus_client"))


def gateway(
    *,
    engine: Annotated[list[str] | None, option("URL of a replica; may be repeated.")] = None,
    prefill: Annotated[
        list[str] | None, option("URL of a server that prefills prompts; may be repeated.")
    ] = None,
    config: Annotated[Path | None, option("Settings of the gateway (YAML).")] = None,
    host: Annotated[str, option("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 picks a free one.", min=0, max=65535)] = 8080,
    json: JsonFile = None,
) -> None:
    """Serve OpenAI's API with a fleet of replicas, until Ctrl-C or SIGTERM. Drains before it stops.

    The report of --json is the gateway's URL, written as soon as it listens.
    """
    check_json(json)
    try:
        from forebay.gateway.serve import run_gateway
        from forebay.gateway.spec import load_gateway
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise SetupError(
            f"the gateway needs {error.name}, which is not installed; pip install 'forebay[gateway]'"
        ) from None
    load = partial(load_gateway, config, tuple(engine or ()), tuple(prefill or ()))
    spec = load()
    log_to_stderr()

    def announce(url: str) -> None:
        print_report(json, {"url": url}, lambda console: print_line(console, f"gateway at {url}"))

    run_gateway(spec, host=host, port=port, announce=announce, load=load, path=config)
