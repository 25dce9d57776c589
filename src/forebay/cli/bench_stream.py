"""`forebay bench stream`: a pipeline measured end to end."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.bench_serve import INVALID_STATUS, REPORT, read_processes
from forebay.cli.bench_stream_figures import reported, show_rate, stream_progress, trial_words
from forebay.cli.output import (
    JsonFile,
    check_distinct,
    check_json,
    check_writable,
    errors_console,
    say,
    shows_text,
)
from forebay.cli.schedule_options import LOAD, Burstiness, BurstsOf, EvenGaps, Ramp, Speed
from forebay.counted import counted
from forebay.errors import SettingError

if TYPE_CHECKING:
    from forebay.bench.stream.document import MeasuredStream
    from forebay.bench.stream.loads import EventLoadOptions
    from forebay.bench.stream.options import EventLoad, StreamOptions
    from forebay.bench.stream.rate_search import Trial
    from forebay.s3.location import S3Path

PIPELINE, EVENTS = "Pipeline", "Events"


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
EngineLater = Annotated[
    bool,
    typer.Option(
        "--engine-later",
        help="Start though nobody listens at the engine's URL yet.",
        rich_help_panel=PIPELINE,
    ),
]
State = Annotated[
    str | None,
    typer.Option(
        metavar="S3-ADDRESS",
        help="Put the checkpoints below s3://bucket/prefix, in a folder of their own that is deleted at the "
        "end, and not on this machine.",
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
    engine_later: EngineLater = False,
    state: State = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Events per second, with exponential gaps (Poisson); default: 10.", rich_help_panel=LOAD
        ),
    ] = None,
    burstiness: Burstiness = None,
    constant: EvenGaps = False,
    ramp: Ramp = None,
    bursts: BurstsOf = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Arrivals of a trace in Mooncake's or Azure's format.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    speed: Speed = 1.0,
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
            "begins at --rate, and tries each for --seconds (default: 30), or longer until it can tell.",
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
        engine_later=engine_later,
        state=None if state is None else state_path(state),
        load=asked.load(),
        warm_events=warm_events,
        slo=slo,
        patience_s=patience,
        processes=read_processes(process or ()),
    )
    found: list[MeasuredStream] = []
    if find_rate:
        check_searchable(options)
        if asked.fixed:
            raise SettingError(f"--find-rate: expected none with {asked.fixed}")
        if repeats > 1:
            raise SettingError("--find-rate: expected none with --repeats; it repeats the rate that it finds")
        search_rate(options, asked, found, json=json, html=html, share=slo_share)
        return
    loads = [asked.load(turn) for turn in range(repeats)]
    with reported(found, json, html):
        measure_loads(options, loads, found)


def state_path(text: str) -> S3Path:
    """The address of `--state`. Raises `SettingError` where it is none."""
    from forebay.s3.location import s3_path

    try:
        return s3_path(text)
    except SettingError as error:
        raise SettingError(f"--state: {error}") from None


def check_searchable(options: StreamOptions) -> None:
    """Raise `SettingError` where no rate can be found: where a result stands for many events, as too few come
    to tell how a rate did, and where the objective is shorter than a commit waits for its checkpoint."""
    from forebay.bench.stream.pipeline import read_pipeline
    from forebay.bench.stream.result_book import ManyToOne

    spec = read_pipeline(options.pipeline, options.settings)
    if spec.application is not None and ManyToOne.of(spec) is not None:
        raise SettingError(
            f"--find-rate: expected none with application {spec.application.type}: each result stands for "
            "many events, and too few come to tell whether a rate is sustained; give --rate"
        )
    slo, interval_s = options.slo, spec.checkpoint.interval_s
    if slo is not None and slo.until == Moment.committed.value and slo.within_s <= interval_s:
        raise SettingError(
            f"--slo-event-ms: {slo.within_s * 1000:g} ms to the commit cannot be kept at any rate, as a "
            f"commit waits up to {interval_s:g} s for the next checkpoint; give more, --slo-until answered, "
            "or a shorter --set checkpoint.interval_s"
        )


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
            say(console, f"measuring {counted(load.events, 'event')}{turn}")
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

    with (
        reported(found, json, html, command="find-rate", more=more, judged=False, answer=show_rate),
        stream_progress(console) as on_progress,
        StreamSession(options, note=lambda words: say(console, words), on_progress=on_progress) as session,
    ):
        session.warm_up()
        for trial, run in trials(session, search, asked.at_rate, slo=options.slo, share=share):
            made.append(trial)
            found.append(measured_stream(with_origin(run, session, options), options.slo))
            say(console, f"{trial.rate_per_s:.4g} events/s: {trial_words(trial)}")
    if search.found_per_s is None:
        raise typer.Exit(INVALID_STATUS)
