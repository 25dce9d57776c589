"""`forebay bench compare`: differences between two benchmarks beyond noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.output import (
    JsonFile,
    check_distinct,
    check_json,
    check_writable,
    errors_console,
    results_console,
    say,
    shows_text,
    write_json,
    write_page,
)
from forebay.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.bench.compare import Comparison

ONE_EACH = (
    "One run each: the intervals come from its requests and do not cover differences between runs. With "
    "repeats of both, they do."
)


def compare_runs(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="The baseline.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="The benchmark to compare with it.")],
    *,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare even if models or loads differ, or runs are invalid.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write the comparison as an HTML page.")] = None,
    json: JsonFile = None,
) -> None:
    """Compare two recorded benchmarks: differences with intervals, and which are beyond noise.

    Refuses different models, loads or objectives, and invalid or interrupted runs.
    """
    from forebay.bench.compare import comparison_document
    from forebay.bench.report.document import requests_path
    from forebay.bench.stream.document import events_path

    check_json(json)
    if html is not None:
        check_writable("--html", html)
    document = None if json is None or not shows_text(json) else Path(json)
    check_distinct(
        {"--json": document, "--html": html},
        {
            "A.json": before,
            "the requests of A.json": requests_path(before),
            "the events of A.json": events_path(before),
            # May be the same file, to show the noise.
            **({} if after.resolve() == before.resolve() else {"B.json": after}),
            "the requests of B.json": requests_path(after),
            "the events of B.json": events_path(after),
        },
    )
    found, page = _compared(before, after, anyway=anyway)
    write_json(json, comparison_document(found))
    if html is not None:
        write_page(html, page())
    if shows_text(json):
        show(found, results_console())
        if any(len(load.before) < 2 or len(load.after) < 2 for load in found.loads):
            say(errors_console(), ONE_EACH)
    for obstacle in found.obstacles:
        say(errors_console(), f"not comparable: {obstacle}", style="yellow")


def is_stream(path: Path) -> bool:
    from forebay.bench.report.document import read_object
    from forebay.bench.stream.document import FORMAT

    return read_object(path).get("format") == FORMAT


def _compared(before: Path, after: Path, *, anyway: bool) -> tuple[Comparison[Any], Callable[[], str]]:
    """Raises `SettingError` for documents of two kinds."""
    from forebay.bench.compare import compare
    from forebay.bench.compare import compare_runs as compare_kind
    from forebay.bench.report.document import read_report
    from forebay.bench.report.html_compare import comparison_page, event_curves, request_curves
    from forebay.bench.stream.compare import STREAMS
    from forebay.bench.stream.document import read_streams

    names = before.name, after.name
    of_streams = [is_stream(path) for path in (before, after)]
    if not any(of_streams):
        found = compare(read_report(before), read_report(after), anyway=anyway)
        return found, lambda: comparison_page(found, *names, request_curves)
    if not all(of_streams):
        stream, other = (before, after) if of_streams[0] else (after, before)
        raise SettingError(
            f"{stream} was written by forebay bench stream, {other} was not: events cannot be compared with "
            "requests; use two documents of the same command"
        )
    streams = compare_kind(read_streams(before).runs, read_streams(after).runs, STREAMS, anyway=anyway)
    times = "Times count from an event's own time, or from that of a result that covers many events."
    return streams, lambda: comparison_page(streams, *names, event_curves, times)


def show(found: Comparison[Any], console: Console) -> None:
    from rich.table import Table

    from forebay.bench.report.html_compare import HEADER, difference_row

    for load in found.loads:
        say(console, f"at {load.name}", style="bold")
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for place, column in enumerate(HEADER):
            table.add_column(column, justify="right" if place else "left", no_wrap=True)
        for one in load.differences:
            table.add_row(*difference_row(one))
        console.print(table)
        say(console, "")
