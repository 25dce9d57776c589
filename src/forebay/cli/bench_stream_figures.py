"""Output of measured pipelines: terminal, document and page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from forebay.cli.bench_figures import progress_bar
from forebay.cli.bench_serve import INTERRUPTED_STATUS, INVALID_STATUS
from forebay.cli.output import json_path, print_line, results_console, shows_text, write_file, write_json
from forebay.errors import ForebayError
from forebay.untrusted_text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.bench.metrics import Distribution
    from forebay.bench.stream.book import StreamProgress
    from forebay.bench.stream.document import MeasuredStream
    from forebay.bench.stream.rate_search import Trial

PERCENTILES = (50.0, 90.0, 99.0)


def describe_trial(trial: Trial) -> str:
    if trial.doubts:
        return f"inconclusive: {'; '.join(trial.doubts)}"
    return "sustained" if trial.sustained else f"not sustained: {trial.why}"


def describe_rate(found_per_s: float | None, high_per_s: float | None) -> str:
    if found_per_s is None:
        return "no rate was found that is sustained every time"
    above = "" if high_per_s is None else f"; {high_per_s:.4g} is not"
    return f"{found_per_s:.4g} events/s is sustained{above}"


Answer = Callable[[Sequence["MeasuredStream"], Mapping[str, Any], "Console"], None]


def show_rate(found: Sequence[MeasuredStream], document: Mapping[str, Any], console: Console) -> None:
    print_line(console, "")
    for text in document["invalid"]:
        print_line(console, f"INVALID: {text}", style="red")
    print_line(
        console, describe_rate(document["sustained_per_s"], document["not_sustained_per_s"]), style="bold"
    )


@contextmanager
def reported(
    found: list[MeasuredStream],
    json: str | None,
    html: Path | None,
    *,
    command: str = "stream",
    more: Callable[[], dict[str, Any]] = dict,
    judged: bool = True,
    answer: Answer | None = None,
) -> Iterator[None]:
    """Writes and prints the runs at the end of a measurement, even after an error or Ctrl-C.

    Then ends the command with its exit status. `more` adds to the document, `answer` prints a conclusion
    below the runs. If not `judged`, an INVALID run does not make the status 1.
    """
    from forebay.bench.stream.document import stream_document, write_stream

    failure: BaseException | None = None
    try:
        yield
    except (ForebayError, KeyboardInterrupt) as error:
        if not found:
            raise
        failure = error
    document = {**stream_document(found, command), **more()}
    if (path := json_path(json)) is not None:
        write_stream(path, found, document)
    else:
        write_json(json, document)
    if html is not None:
        from forebay.bench.report.html_stream import stream_page

        write_file("--html", html, stream_page(found, command).encode())
    if shows_text(json):
        for measured in found:
            show_stream(measured, results_console())
        if answer is not None:
            answer(found, document, results_console())
    if isinstance(failure, ForebayError):
        raise failure
    last = found[-1].run
    if last.failure is None and (failure is not None or not last.complete):
        raise typer.Exit(INTERRUPTED_STATUS)
    if judged and not all(measured.verdict.valid for measured in found):
        raise typer.Exit(INVALID_STATUS)


@contextmanager
def stream_progress(console: Console) -> Iterator[Callable[[float, StreamProgress], None]]:
    with progress_bar(console) as draw:

        def show(passed_s: float, progress: StreamProgress) -> None:
            lag = max(0, progress.due - progress.done)
            failed = f", {counted(progress.failed, 'dead letter')}" if progress.failed else ""
            text = f"{max(0.0, passed_s):.0f} s, {lag} not committed{failed}"
            draw(text, progress.total, progress.done)

        yield show


def show_stream(measured: MeasuredStream, console: Console) -> None:
    from rich.table import Table

    from forebay.bench.stream.figures import stages_of

    figures, verdict, run = measured.figures, measured.verdict, measured.run
    print_line(console, "")
    print_line(console, describe_load(run.asked), style="bold")
    print_line(console, verdict.word, style="green" if verdict.valid else "red")
    for text in (*verdict.reasons, *verdict.notes):
        print_line(console, f"  {text}")
    for text in headlines(measured):
        print_line(console, text)
    table = Table("ms", "mean", *(f"p{percentile:g}" for percentile in PERCENTILES), "max", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, distribution in figures.latency.items():
        table.add_row(f"event time to {name}", *_ms(distribution))
    for name, (_, _, waited) in stages_of(run).items():
        if name in figures.stages:
            table.add_row(f"  {waited}", *_ms(figures.stages[name]))
    if figures.watermark_delay is not None:
        table.add_row("watermark behind the clock", *_ms(figures.watermark_delay))
    if "duration_s" in figures.checkpoint:
        table.add_row("checkpoint", *_ms(figures.checkpoint["duration_s"]))
    console.print(table)


def headlines(measured: MeasuredStream) -> Iterator[str]:
    figures = measured.figures
    noun = measured.run.noun
    counts = f"{figures.committed} of {figures.offered} {noun}s committed"
    others = (
        ("dead letters", figures.failed),
        ("lost", figures.lost),
        ("duplicated", figures.doubled),
        ("of other events", figures.miscounted),
    )
    yield ", ".join((counts, *(f"{count} {name}" for name, count in others if count)))
    yield from causes(measured)
    yield (
        f"due {figures.offered_per_s:.2f}/s, answered {figures.answered_per_s:.2f}/s, committed "
        f"{figures.committed_per_s:.2f}/s"
    )
    if measured.slo is not None and figures.goodput is not None and figures.good_per_s is not None:
        yield (
            f"goodput {figures.goodput:.1%}, {figures.good_per_s:.2f} {noun}s/s {measured.slo.until} within "
            f"{measured.slo.within_s * 1000:g} ms"
        )
    for name, slope in figures.lag.items():
        growth = ""
        if slope is not None:
            growth = f", grew by {slope.per_s:+.3f}/s (95 % interval {slope.low:+.3f} to {slope.high:+.3f})"
        yield f"lag, {noun}s not {name}: at most {figures.most_lag[name]}{growth}"
    failed = f", {figures.failed_checkpoints} failed" if figures.failed_checkpoints else ""
    yield f"{counted(figures.checkpoints, 'checkpoint')}{failed}"


MAX_CAUSES = 3


def causes(measured: MeasuredStream) -> Iterator[str]:
    run = measured.run
    both = run.events if run.results is None else (*run.events, *run.results)
    errors = [each.error for each in both if each.error is not None]
    first = {error.partition(":")[0]: error for error in reversed(errors)}
    counts = Counter(error.partition(":")[0] for error in errors)
    for cause, count in counts.most_common(MAX_CAUSES):
        yield f"{count} of {counted(counts.total(), 'dead letter')}: {first[cause]}"


def describe_load(asked: Mapping[str, Any]) -> str:
    schedule = dict(asked["schedule"])
    kind = schedule.pop("kind")
    settings = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in schedule.items()
    )
    pipeline = asked["pipeline"]
    window = f"; {pipeline['window']} windows" if pipeline.get("window") else ""
    lengths = ((name, pipeline.get(f"window_{name}_s")) for name in ("size", "step", "gap", "every"))
    spans = (f" {name} {value:g} s" for name, value in lengths if value is not None)
    return (
        f"{pipeline['name']}: {counted(asked['events'], 'event')}, {kind} {settings}{window}{','.join(spans)}"
    )


def _ms(found: Distribution) -> Iterator[str]:
    for value_s in (found.mean, *map(found.percentiles.get, PERCENTILES), found.maximum):
        yield "–" if value_s is None else f"{value_s * 1000:.1f}"


def show_goodput(found: Sequence[MeasuredStream], document: Mapping[str, Any], console: Console) -> None:
    print_line(console, "")
    from rich.table import Table

    from forebay.bench.stream.kills import next_result_s

    table = Table("run", "goodput", "good events/s", "lost", "duplicated", "dead letters", box=None)
    for measured in found:
        figures = measured.figures
        table.add_row(
            f"{len(measured.run.kills)} of {measured.run.planned_kills} kills",
            "–" if figures.goodput is None else f"{figures.goodput:.1%}",
            "–" if figures.good_per_s is None else f"{figures.good_per_s:.2f}",
            *map(str, (figures.lost, figures.doubled, figures.failed)),
        )
    console.print(table)
    for measured in found:
        for killed in measured.run.kills:
            after_s = next_result_s(killed, measured.run.followed)
            back = "no result afterwards" if after_s is None else f"next result {after_s:.1f} s later"
            print_line(console, f"{killed.part} killed at {killed.at_s:.1f} s: {back}")
