"""`forebay bench stream`: a pipeline measured end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.bench_serve import INTERRUPTED_STATUS, INVALID_STATUS, LOAD, REPORT, read_processes
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
)
from forebay.errors import ForebayError, SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.bench.metrics import Distribution
    from forebay.bench.stream.document import MeasuredStream
    from forebay.bench.stream.loads import EventLoadOptions
    from forebay.bench.stream.measure import Progress
    from forebay.bench.stream.options import EventLoad, StreamOptions
    from forebay.bench.stream.rate_search import Trial

PIPELINE, EVENTS = "Pipeline", "Events"
PERCENTILES = (50.0, 90.0, 99.0)


class Moment(str, Enum):
    """Up to when an event's latency counts."""

    answered = "answered"
    committed = "committed"


Pipeline = Annotated[Path, typer.Argument(help="A pipeline file (YAML).", metavar="PIPELINE")]
SetValues = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Override a key of the pipeline, such as checkpoint.interval_s=1; may be repeated.",
        rich_help_panel=PIPELINE,
    ),
]
EngineUrls = Annotated[
    list[str] | None,
    typer.Option(
        help="URL of an engine, instead of the file's; may be repeated. Where neither names one, a local "
        "engine is started.",
        rich_help_panel=PIPELINE,
    ),
]
WarmEvents = Annotated[
    int, typer.Option(min=1, help="Events before the measured ones, not counted.", rich_help_panel=EVENTS)
]
DataFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="JSON objects, one a line, in place of made-up posts (id, user, text).",
        rich_help_panel=EVENTS,
    ),
]
SloMs = Annotated[
    float | None,
    typer.Option(
        help="Objective for goodput: from an event's time to its committed result.", rich_help_panel=REPORT
    ),
]
SloUntil = Annotated[
    Moment, typer.Option(help="Up to when the latency counts for it.", rich_help_panel=REPORT)
]
Patience = Annotated[
    float,
    typer.Option(
        help="How long commits are waited for after the last event, in seconds.", rich_help_panel=EVENTS
    ),
]
Named = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=PID",
        help="Sample processor and memory of a further process on this machine. May be repeated.",
        rich_help_panel=REPORT,
    ),
]


HtmlFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the report as one page.", rich_help_panel=REPORT),
]


def stream(
    pipeline: Pipeline,
    *,
    set: SetValues = None,
    engine: EngineUrls = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Events per second, with exponential gaps (Poisson); default: 10.", rich_help_panel=LOAD
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(
            help="With --rate: gaps from a gamma distribution of this shape; below 1 in bursts, above 1 "
            "evener.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    constant: Annotated[
        bool, typer.Option("--constant", help="With --rate: even gaps.", rich_help_panel=LOAD)
    ] = False,
    ramp: Annotated[
        str | None,
        typer.Option(metavar="FROM:TO:SECONDS", help="A rate that grows over so long.", rich_help_panel=LOAD),
    ] = None,
    bursts: Annotated[
        str | None,
        typer.Option(metavar="SIZE:SECONDS", help="So many at once, every so often.", rich_help_panel=LOAD),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Arrivals of a trace in Mooncake's or Azure's format.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="With --trace: so many times as fast.", rich_help_panel=LOAD)
    ] = 1.0,
    events: Annotated[
        int | None,
        typer.Option(help="Number of events (default: 300, or all of a trace).", rich_help_panel=LOAD),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="In place of --events, with --rate: as many as are due in so long.", rich_help_panel=LOAD
        ),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="Runs of the load, with other seeds, on one start.", rich_help_panel=LOAD
        ),
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of times and posts.", rich_help_panel=LOAD)] = 0,
    find_rate: Annotated[
        bool,
        typer.Option(
            "--find-rate",
            help="Search for the highest rate at which the lag does not grow and the objective is kept; it "
            "begins at --rate, and tries each for --seconds (default: 30).",
            rich_help_panel=LOAD,
        ),
    ] = False,
    data: DataFile = None,
    warm_events: WarmEvents = 20,
    patience: Patience = 60.0,
    slo_event_ms: SloMs = None,
    slo_until: SloUntil = Moment.committed,
    slo_share: Annotated[
        float,
        typer.Option(
            min=0.01, max=1, help="With --find-rate: the share that has to keep it.", rich_help_panel=REPORT
        ),
    ] = 0.99,
    process: Named = None,
    json: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Measure a pipeline end to end: what each event felt, from its own time to its committed result.

    Source and sinks are replaced by the measurement's own; nothing of yours is read or written. The exit
    status is 1 where the figures cannot be believed, and 130 after Ctrl-C; what was measured until then is
    reported.
    """
    from forebay.bench.stream.loads import EventLoadOptions
    from forebay.bench.stream.options import EventSlo, StreamOptions

    check_files(json, html, {"--data": data, "--trace": trace, "PIPELINE": pipeline})
    asked = EventLoadOptions(
        rate=rate,
        burstiness=burstiness,
        constant=constant,
        ramp=ramp,
        bursts=bursts,
        trace=trace,
        speed=speed,
        events=events,
        seconds=seconds,
        data=data,
        seed=seed,
    )
    slo = None if slo_event_ms is None else EventSlo(within_s=slo_event_ms / 1000, until=slo_until.value)
    options = StreamOptions(
        pipeline=pipeline,
        settings=set or (),
        engine=engine or (),
        load=asked.load(),
        warm_events=warm_events,
        slo=slo,
        patience_s=patience,
        processes=read_processes(process or ()),
    )
    found: list[MeasuredStream] = []
    if find_rate:
        if asked.fixed:
            raise SettingError(f"--find-rate: expected none with {asked.fixed}")
        if repeats > 1:
            raise SettingError("--find-rate: expected none with --repeats; it repeats the rate that it finds")
        search_rate(options, asked, found, json=json, html=html, share=slo_share)
        return
    loads = [asked.load(turn) for turn in range(repeats)]
    with reported(found, json, html):
        measure_loads(options, loads, found)


def check_files(json: str | None, html: Path | None, read: dict[str, Path | None]) -> None:
    """Raise `SettingError` where what is to be written cannot be, or is what is read."""
    from forebay.bench.stream.document import events_path

    check_json(json)
    if html is not None:
        check_writable("--html", html)
    document = None if json is None or not shows_text(json) else Path(json)
    events = None if document is None else events_path(document)
    check_distinct({"--json": document, "the events of --json": events, "--html": html}, read)


def measure_loads(options: StreamOptions, loads: Sequence[EventLoad], found: list[MeasuredStream]) -> None:
    """Measure the loads, one after the other on one start of the pipeline; each goes to `found`."""
    from forebay.bench.stream.document import measured_stream
    from forebay.bench.stream.measure import StreamSession
    from forebay.bench.stream.origin import with_origin

    console = errors_console()
    with (
        stream_progress(console) as on_progress,
        StreamSession(options, note=lambda words: say(console, words), on_progress=on_progress) as session,
    ):
        session.warm_up()
        for number, load in enumerate(loads, 1):
            turn = f" ({number} of {len(loads)})" if len(loads) > 1 else ""
            say(console, f"measuring {load.events} events{turn}")
            run = session.measure(load)
            found.append(measured_stream(with_origin(run, session, options), options.slo))
            if not run.complete:
                break


def search_rate(
    options: StreamOptions,
    asked: EventLoadOptions,
    found: list[MeasuredStream],
    *,
    json: str | None,
    html: Path | None,
    share: float,
) -> None:
    """Search for the highest sustained rate; shows each trial, and the runs' document has the search."""
    from dataclasses import asdict

    from forebay.bench.stream.document import measured_stream
    from forebay.bench.stream.loads import RATE_PER_S
    from forebay.bench.stream.measure import StreamSession
    from forebay.bench.stream.origin import with_origin
    from forebay.bench.stream.rate_search import RateSearch, trials

    console = errors_console()
    search = RateSearch(asked.rate or RATE_PER_S)
    made: list[Trial] = []

    def more() -> dict[str, Any]:
        return {
            "sustained_per_s": search.found_per_s,
            "not_sustained_per_s": search.high_per_s,
            "share": share,
            "invalid": list(made[-1].doubts) if made and search.next_per_s is not None else [],
            "trials": [asdict(trial) for trial in made],
        }

    with reported(found, json, html, command="find-rate", more=more, judged=False):
        with (
            stream_progress(console) as on_progress,
            StreamSession(
                options, note=lambda words: say(console, words), on_progress=on_progress
            ) as session,
        ):
            session.warm_up()
            for trial, run in trials(session, search, asked.at_rate, slo=options.slo, share=share):
                made.append(trial)
                found.append(measured_stream(with_origin(run, session, options), options.slo))
                say(console, f"{trial.rate_per_s:.4g} events/s: {trial_words(trial)}")
        if shows_text(json):
            for words in more()["invalid"]:
                say(results_console(), f"INVALID: {words}", style="red")
            say(results_console(), rate_words(search.found_per_s, search.high_per_s), style="bold")
    if search.found_per_s is None:
        raise typer.Exit(INVALID_STATUS)


def trial_words(trial: Trial) -> str:
    """What came of a rate that was tried."""
    if trial.doubts:
        return f"cannot be told: {'; '.join(trial.doubts)}"
    return "sustained" if trial.sustained else f"not sustained: {trial.why}"


def rate_words(found_per_s: float | None, high_per_s: float | None) -> str:
    """What a search gave, in one line."""
    if found_per_s is None:
        return "no rate was found that is sustained each time"
    above = "" if high_per_s is None else f"; {high_per_s:.4g} are not"
    return f"{found_per_s:.4g} events/s are sustained{above}"


@contextmanager
def reported(
    found: list[MeasuredStream],
    json: str | None,
    html: Path | None,
    *,
    command: str = "stream",
    more: Callable[[], dict[str, Any]] = dict,
    judged: bool = True,
) -> Iterator[None]:
    """Around what measures: at its end, also after an error or Ctrl-C, write and show the runs that are
    there, and end the command with its exit status. The document has `more` besides. Not `judged`: a run that
    is INVALID does not make it end with 1."""
    from forebay.bench.stream.document import stream_document, write_stream

    failure: BaseException | None = None
    try:
        yield
    except (ForebayError, KeyboardInterrupt) as error:
        if not found:
            raise
        failure = error
    document = {**stream_document(found, command), **more()}
    if json is not None and shows_text(json):
        write_stream(Path(json), found, document)
    else:
        write_json(json, document)
    if html is not None:
        write_page(html, found, command)
    if shows_text(json):
        for measured in found:
            show_stream(measured, results_console())
    if isinstance(failure, ForebayError):
        raise failure
    last = found[-1].run
    if last.failure is None and (failure is not None or not last.complete):
        raise typer.Exit(INTERRUPTED_STATUS)
    if judged and not all(measured.verdict.valid for measured in found):
        raise typer.Exit(INVALID_STATUS)


def write_page(path: Path, found: Sequence[MeasuredStream], command: str) -> None:
    """Write the runs as a page. Raises `SettingError` where it cannot be written."""
    from forebay.bench.report.html_stream import stream_page
    from forebay.files import write_atomic

    try:
        write_atomic(path, stream_page(found, command).encode())
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def stream_progress(console: Console) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal, nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(
        *columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("")

        def tell(progress: Progress) -> None:
            lag = progress.due - progress.done
            failed = f", {progress.failed} dead letters" if progress.failed else ""
            words = f"{max(0.0, progress.passed_s):.0f} s, {lag} not committed{failed}"
            bar.update(task, description=words, total=progress.events, completed=progress.done)
            bar.refresh()

        yield tell


def show_stream(measured: MeasuredStream, console: Console) -> None:
    """One run: its verdict, its rates, and where its events' time went."""
    from rich.table import Table

    from forebay.bench.stream.figures import STAGES

    figures, verdict, run = measured.figures, measured.verdict, measured.run
    say(console, "")
    say(console, load_words(run.asked), style="bold")
    say(console, verdict.word, style="green" if verdict.valid else "red")
    for words in (*verdict.reasons, *verdict.notes):
        say(console, f"  {words}")
    for words in headlines(measured):
        say(console, words)
    table = Table("ms", "mean", *(f"p{percentile:g}" for percentile in PERCENTILES), "max", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, distribution in figures.latency.items():
        table.add_row(f"event time to {name}", *_ms(distribution))
    for name, (_, _, waited) in STAGES.items():
        if name in figures.stages:
            table.add_row(f"  {waited}", *_ms(figures.stages[name]))
    if figures.watermark_delay is not None:
        table.add_row("watermark behind the clock", *_ms(figures.watermark_delay))
    if "duration_s" in figures.checkpoint:
        table.add_row("checkpoint", *_ms(figures.checkpoint["duration_s"]))
    console.print(table)


def headlines(measured: MeasuredStream) -> Iterator[str]:
    """What a run gave, in a few lines of text."""
    figures = measured.figures
    counts = f"{figures.committed} of {figures.offered} events committed"
    others = (("dead letters", figures.failed), ("lost", figures.lost), ("doubled", figures.doubled))
    yield ", ".join((counts, *(f"{count} {name}" for name, count in others if count)))
    yield (
        f"due {figures.offered_per_s:.2f}/s, answered {figures.answered_per_s:.2f}/s, committed "
        f"{figures.committed_per_s:.2f}/s"
    )
    if measured.slo is not None and figures.goodput is not None and figures.good_per_s is not None:
        yield (
            f"goodput {figures.goodput:.1%}, {figures.good_per_s:.2f} events/s {measured.slo.until} within "
            f"{measured.slo.within_s * 1000:g} ms"
        )
    for name, slope in figures.lag.items():
        growth = (
            ""
            if slope is None
            else f", grew by {slope.per_s:+.3f}/s (95 % interval {slope.low:+.3f} to {slope.high:+.3f})"
        )
        yield f"lag, events not {name}: at most {figures.most_lag[name]}{growth}"
    failed = f", {figures.failed_checkpoints} failed" if figures.failed_checkpoints else ""
    yield f"{figures.checkpoints} checkpoints{failed}"


def load_words(asked: Mapping[str, Any]) -> str:
    """What was asked for, in one line."""
    schedule = dict(asked["schedule"])
    kind = schedule.pop("kind")
    settings = ", ".join(f"{name} {value}" for name, value in schedule.items())
    return f"{asked['pipeline']['name']}: {asked['events']} events, {kind} {settings}"


def _ms(found: Distribution) -> Iterator[str]:
    values = [found.mean, *(found.percentiles.get(number) for number in PERCENTILES), found.maximum]
    for value_s in values:
        yield "–" if value_s is None else f"{value_s * 1000:.1f}"
