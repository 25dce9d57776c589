"""`forebay bench`: measure a server or a pipeline, and compare, show and convert recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from forebay.cli.bench_figures import figures_table, show_runs
from forebay.cli.bench_serve import serve
from forebay.cli.bench_stream import goodput, stream
from forebay.cli.options import option
from forebay.cli.output import (
    STDOUT,
    Command,
    JsonFile,
    check_outputs,
    errors_console,
    print_line,
    print_report,
    results_console,
    shows_text,
    write_file,
    write_json,
)
from forebay.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.bench.compare import Comparison
    from forebay.bench.report.document import MeasuredRun

ONE_EACH = (
    "One run each: the intervals come from its requests and do not cover differences between runs. With "
    "repeats of both, they do."
)

bench = typer.Typer(help="Measure an engine or a pipeline, and compare runs.", no_args_is_help=True)
for command in (serve, stream, goodput):
    bench.command(cls=Command)(command)


class ReportFormat(str, Enum):
    vllm = "vllm"
    aiperf = "aiperf"
    br = "br"


@bench.command(name="report", cls=Command)
def report_run(
    recorded: Annotated[Path, typer.Argument(metavar="RUN.json", help="A file written by forebay bench.")],
    *,
    html: Annotated[Path | None, option("Write an HTML page: tables, curves, all requests.")] = None,
    format: Annotated[
        ReportFormat | None,
        option("Write it in the format of vllm bench serve, AIPerf, or llm-d's Benchmark Report (br)."),
    ] = None,
    output: Annotated[str, option("Output of --format: a file, or - for standard output.")] = STDOUT,
    run: Annotated[
        int | None, option("Show only this run, or write it with --format (default: 1).", min=1)
    ] = None,
    json: JsonFile = None,
) -> None:
    """Show a recorded benchmark, write its page, or convert it to another tool's format."""
    from forebay.bench.report.document import document, read_report
    from forebay.bench.report.html import report_page

    to = None if format is None or output == STDOUT else Path(output)
    check_outputs(json, {"--html": html, "--output": to}, _files_of(recorded, "RUN.json"))
    if is_stream(recorded):
        if format is not None:
            raise SettingError(
                f"--format {format.value}: {recorded} was written by forebay bench stream; that format is "
                "for requests, not events"
            )
        _report_streams(recorded, html, run, json)
        return
    report = read_report(recorded)
    _check_run(run, len(report.runs), recorded)
    if html is not None:
        write_file("--html", html, report_page(report).encode())
    if format is not None:
        one = report.runs[(run or 1) - 1]
        if not one.run.records:
            raise SettingError(
                f"--format {format.value}: the file with the requests of {recorded} is missing"
            )
        if to is not None:
            write_file("--output", to, b"".join(line + b"\n" for line in in_format(format, one)))
        else:
            for line in in_format(format, one):
                typer.echo(line)
    write_json(json, document(report))
    if html is None and format is None and shows_text(json):
        show_runs(report.runs if run is None else report.runs[run - 1 : run], results_console())


def _report_streams(recorded: Path, html: Path | None, run: int | None, json: str | None) -> None:
    from forebay.bench.report.html_stream import stream_page
    from forebay.bench.stream.document import read_streams, stream_document
    from forebay.cli.bench_stream_figures import show_goodput, show_rate, show_stream

    report = read_streams(recorded)
    _check_run(run, len(report.runs), recorded)
    shown = report.runs if run is None else report.runs[run - 1 : run]
    if html is not None:
        write_file("--html", html, stream_page(shown, report.command).encode())
    write_json(json, {**stream_document(report.runs, report.command), **report.more})
    if html is None and shows_text(json):
        for measured in shown:
            show_stream(measured, results_console())
        answer = {"goodput": show_goodput, "find-rate": show_rate}.get(report.command)
        if run is None and answer is not None:
            answer(shown, report.more, results_console())


def _check_run(run: int | None, runs: int, recorded: Path) -> None:
    if run is not None and run > runs:
        raise SettingError(f"--run {run}: {recorded} has only {runs}")


def in_format(format: ReportFormat, measured: MeasuredRun) -> Iterator[bytes]:
    from forebay.bench.report.formats import aiperf_records, vllm_result
    from forebay.bench.report.llmd import benchmark_report

    if format is ReportFormat.aiperf:
        yield from map(orjson.dumps, aiperf_records(measured.run))
    elif format is ReportFormat.vllm:
        yield orjson.dumps(vllm_result(measured.run, measured.slo))
    else:
        yield orjson.dumps(benchmark_report(measured, version("forebay")), option=orjson.OPT_INDENT_2)


@bench.command(name="compare", cls=Command)
def compare_runs(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="The baseline.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="The benchmark to compare with it.")],
    *,
    anyway: Annotated[
        bool, option("Compare even if models or loads differ, or runs are invalid.", "--anyway")
    ] = False,
    html: Annotated[Path | None, option("Write the comparison as an HTML page.")] = None,
    json: JsonFile = None,
) -> None:
    """Compare two recorded benchmarks: differences with intervals, and which are beyond noise.

    Refuses different models, loads or objectives, and invalid or interrupted runs.
    """
    from forebay.bench.compare import comparison_document

    # A may be B, to show the noise.
    other = {} if after.resolve() == before.resolve() else _files_of(after, "B.json")
    check_outputs(json, {"--html": html}, {**_files_of(before, "A.json"), **other})
    found, page = _compared(before, after, anyway=anyway)
    print_report(json, comparison_document(found), lambda console: show_comparison(found, console))
    if html is not None:
        write_file("--html", html, page().encode())
    if shows_text(json) and any(len(load.before) < 2 or len(load.after) < 2 for load in found.loads):
        print_line(errors_console(), ONE_EACH)
    for obstacle in found.obstacles:
        print_line(errors_console(), f"not comparable: {obstacle}", style="yellow")


def _files_of(recorded: Path, name: str) -> Mapping[str, Path]:
    from forebay.bench.report.document import requests_path
    from forebay.bench.stream.document import events_path

    return {
        name: recorded,
        f"the requests of {name}": requests_path(recorded),
        f"the events of {name}": events_path(recorded),
    }


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


def show_comparison(found: Comparison[Any], console: Console) -> None:
    from forebay.bench.report.html_compare import HEADER, difference_row

    for load in found.loads:
        print_line(console, f"at {load.name}", style="bold")
        console.print(figures_table(HEADER, map(difference_row, load.differences)))
        print_line(console, "")
