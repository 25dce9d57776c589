"""`forebay bench report`: show a recorded benchmark, as a page or in another tool's format."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from forebay.cli.bench_compare import is_stream
from forebay.cli.bench_figures import show_runs
from forebay.cli.output import (
    STDOUT,
    JsonFile,
    check_distinct,
    check_json,
    check_writable,
    results_console,
    shows_text,
    write_json,
    write_page,
)
from forebay.errors import SettingError

if TYPE_CHECKING:
    from forebay.bench.report.document import MeasuredRun


class ReportFormat(str, Enum):
    vllm = "vllm"
    aiperf = "aiperf"
    br = "br"


def report_run(
    recorded: Annotated[Path, typer.Argument(metavar="RUN.json", help="A file written by forebay bench.")],
    *,
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page: tables, curves, all requests.")
    ] = None,
    format: Annotated[
        ReportFormat | None,
        typer.Option(
            help="Write it in the format of vllm bench serve, AIPerf, or llm-d's Benchmark Report (br)."
        ),
    ] = None,
    output: Annotated[
        str, typer.Option(help="Output of --format: a file, or - for standard output.")
    ] = STDOUT,
    run: Annotated[
        int | None, typer.Option(min=1, help="Show only this run, or write it with --format (default: 1).")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Show a recorded benchmark, write its page, or convert it to another tool's format."""
    from forebay.bench.report.document import document, read_report, requests_path
    from forebay.bench.stream.document import events_path

    check_json(json)

    if html is not None:
        check_writable("--html", html)
    if format is not None and output != STDOUT:
        check_writable("--output", Path(output))
    to = None if format is None or output == STDOUT else Path(output)
    check_distinct(
        {"--html": html, "--output": to, "--json": None if json in (None, STDOUT) else Path(json)},
        {
            "RUN.json": recorded,
            "the requests of RUN.json": requests_path(recorded),
            "the events of RUN.json": events_path(recorded),
        },
    )
    if is_stream(recorded):
        if format is not None:
            raise SettingError(
                f"--format {format.value}: {recorded} was written by forebay bench stream; that format is "
                "for requests, not events"
            )
        report_streams(recorded, html, run, json)
        return
    report = read_report(recorded)
    if run is not None and run > len(report.runs):
        raise SettingError(f"--run {run}: {recorded} has only {len(report.runs)}")
    if html is not None:
        from forebay.bench.report.html import report_page

        write_page(html, report_page(report))
    if format is not None:
        one = report.runs[(run or 1) - 1]
        if not one.run.records:
            raise SettingError(
                f"--format {format.value}: the file with the requests of {recorded} is missing"
            )
        write_lines(output, in_format(format, one))
    write_json(json, document(report))
    if html is None and format is None and shows_text(json):
        show_runs(report.runs if run is None else report.runs[run - 1 : run], results_console())


def report_streams(recorded: Path, html: Path | None, run: int | None, json: str | None) -> None:
    from forebay.bench.stream.document import read_streams, stream_document
    from forebay.cli.bench_stream_figures import show_goodput, show_rate, show_stream

    report = read_streams(recorded)
    if run is not None and run > len(report.runs):
        raise SettingError(f"--run {run}: {recorded} has only {len(report.runs)}")
    shown = report.runs if run is None else report.runs[run - 1 : run]
    if html is not None:
        from forebay.bench.report.html_stream import stream_page

        write_page(html, stream_page(shown, report.command))
    write_json(json, {**stream_document(report.runs, report.command), **report.more})
    if html is None and shows_text(json):
        for measured in shown:
            show_stream(measured, results_console())
        answer = {"goodput": show_goodput, "find-rate": show_rate}.get(report.command)
        if run is None and answer is not None:
            answer(shown, report.more, results_console())


def in_format(format: ReportFormat, measured: MeasuredRun) -> Iterator[bytes]:
    if format is ReportFormat.aiperf:
        from forebay.bench.report.formats import aiperf_records

        yield from map(orjson.dumps, aiperf_records(measured.run))
    elif format is ReportFormat.vllm:
        from forebay.bench.report.formats import vllm_result

        yield orjson.dumps(vllm_result(measured.run, measured.slo))
    else:
        from importlib.metadata import version

        from forebay.bench.report.llmd import benchmark_report

        yield orjson.dumps(benchmark_report(measured, version("forebay")), option=orjson.OPT_INDENT_2)


def write_lines(output: str, lines: Iterator[bytes]) -> None:
    """Raises `SettingError` if that fails."""
    if output == STDOUT:
        for line in lines:
            typer.echo(line)
        return
    try:
        Path(output).write_bytes(b"".join(line + b"\n" for line in lines))
    except OSError as error:
        raise SettingError(f"--output: cannot write {output}: {error.strerror}") from None
