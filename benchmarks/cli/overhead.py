"""`python -m benchmarks overhead`: the cost of the pipeline, against the engine alone and AsyncFunction."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
import typer
from rich.text import Text

from benchmarks.cli.options import Plot, check_plot, digits, report, show_table
from forebay.cli.output import JsonFile, check_json, errors_console, results_console, say


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

        def show_part(part: str) -> None:
            status.update(Text(part))
            if not console.is_terminal:
                say(console, part)

        found = measure_overhead(OverheadOptions(engine=engine, quick=quick), show_part)
    if plot is not None:
        lines = {name: part["added_ms"] for name, part in found.items() if _is_system(part)}
        title = "95 % of calls 50 ms, 5 % 2 s; 100 events/s" if engine == "fake" else engine
        write_picture(plot, added_picture(lines, title))
    report(json, found, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    _show_systems("", found)
    for name, part in found.items():
        if name == "cost":
            show_table(
                ("events/s", "of a core", "processor/event, ms", "memory"),
                (
                    (
                        f"{load['events_per_s']:.0f}",
                        f"{load['cores']:.1%}",
                        digits(load["ms_per_event"], ".2f"),
                        f"{sum(load['memory_mb'].values()):.0f} MB",
                    )
                    for load in part["loads"]
                ),
                "a run over a feed",
            )
        elif isinstance(part, dict) and any(_is_system(inner) for inner in part.values()):
            _show_systems(name, part)
        elif isinstance(part, dict) and not _is_system(part):
            results_console().print_json(orjson.dumps({name: part}).decode())


def _is_system(part: Any) -> bool:
    return isinstance(part, dict) and "added_ms_p50" in part


def _show_systems(title: str, found: dict[str, Any]) -> None:
    columns = {
        "events/s": ("events_per_s", ".1f"),
        "tokens/s": ("tokens_per_s", ".0f"),
        "added p50 ms": ("added_ms_p50", ".1f"),
        "p99 ms": ("added_ms_p99", ".1f"),
        "checkpoint p99 ms": ("checkpoint_ms_p99", ".0f"),
        "in flight": ("in_flight_mean", ".1f"),
    }
    show_table(
        ("system", *columns),
        (
            (name, *(digits(part[figure], form) for figure, form in columns.values()))
            for name, part in found.items()
            if _is_system(part)
        ),
        title,
    )
