"""`python -m benchmarks overhead`: the cost of the pipeline, against the engine alone and AsyncFunction."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
import typer
from rich.table import Table
from rich.text import Text

from benchmarks.cli.options import Plot, check_plot
from forebay.cli.output import (
    JsonFile,
    check_json,
    errors_console,
    results_console,
    say,
    shows_text,
    write_json,
)


def overhead(
    *,
    engine: Annotated[str, typer.Option(help="`fake`, or the URL of a real engine.")] = "fake",
    quick: Annotated[bool, typer.Option("--quick", help="Shorter parts, and no memory run.")] = False,
    json: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Compare Forebay with the engine alone and with PyFlink's AsyncFunction, in one run."""
    from benchmarks.overhead import OverheadOptions, measure_overhead
    from benchmarks.picture import added_picture
    from forebay.pages.picture import write_picture

    check_json(json)
    check_plot(plot)
    console = errors_console()
    with console.status("starting") as status:

        def note(part: str) -> None:
            status.update(Text(part))
            if not console.is_terminal:
                say(console, part)

        report = measure_overhead(OverheadOptions(engine=engine, quick=quick), note)
    write_json(json, report)
    if plot is not None:
        lines = {name: part["added_ms"] for name, part in report.items() if _is_system(part)}
        title = "95 % of calls 50 ms, 5 % 2 s; 100 events/s" if engine == "fake" else engine
        write_picture(plot, added_picture(lines, title))
    if shows_text(json):
        _show(report)


def _show(report: dict[str, Any]) -> None:
    console = results_console()
    console.print(_table("", report))
    for name, part in report.items():
        if name == "cost":
            console.print(_cost_table(part))
        elif isinstance(part, dict) and any(_is_system(inner) for inner in part.values()):
            console.print(_table(name, part))
        elif isinstance(part, dict) and not _is_system(part):
            console.print_json(orjson.dumps({name: part}).decode())


def _cost_table(cost: dict[str, Any]) -> Table:
    table = Table("events/s", "of a core", "processor/event", "memory", title="a run over a feed")
    for load in cost["loads"]:
        each = load["ms_per_event"]
        table.add_row(
            f"{load['events_per_s']:.0f}",
            f"{100 * load['cores']:.1f} %",
            "–" if each is None else f"{each:.2f} ms",
            f"{sum(load['memory_mb'].values()):.0f} MB",
        )
    return table


def _is_system(part: Any) -> bool:
    return isinstance(part, dict) and "added_ms_p50" in part


def _table(title: str, report: dict[str, Any]) -> Table:
    table = Table(
        "system",
        "events/s",
        "tokens/s",
        "added p50 ms",
        "p99 ms",
        "checkpoint p99 ms",
        "in flight",
        title=title,
    )
    for name, part in report.items():
        if _is_system(part):
            checkpoint = part["checkpoint_ms_p99"]
            table.add_row(
                name,
                f"{part['events_per_s']:.1f}",
                f"{part['tokens_per_s']:.0f}",
                f"{part['added_ms_p50']:.1f}",
                f"{part['added_ms_p99']:.1f}",
                "–" if checkpoint is None else f"{checkpoint:.0f}",
                f"{part['in_flight_mean']:.1f}",
            )
    return table
