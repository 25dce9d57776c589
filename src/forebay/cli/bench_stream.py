"""`forebay bench stream`: measure a pipeline end to end."""

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
from forebay.errors import SettingError
from forebay.untrusted_text import counted

if TYPE_CHECKING:
    from forebay.bench.stream.document import MeasuredStream
    from forebay.bench.stream.events import EventLoad, StreamOptions
    from forebay.bench.stream.loads import EventLoadOptions
    from forebay.bench.stream.rate_search import Trial
    from forebay.clients.s3.location import S3Path

PIPELINE, EVENTS = "Pipeline", "Events"


class LatencyEnd(str, Enum):
    answered = "answered"
    committed = "committed"


Pipeline = Annotated[Path, typer.Argument(help="A pipeline file (YAML).", metavar="PIPELINE")]
SetValues = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Override a pipeline setting, such as checkpoint.interval_s=1; may be repeated.",
        rich_help_panel=PIPELINE,
    ),
]
EngineUrls = Annotated[
    list[str] | None,
    typer.Option(
        help="URL of an engine, instead of the file's; may be repeated. If neither names one, a local "
        "engine is started.",
        rich_help_panel=PIPELINE,
    ),
]
EngineLater = Annotated[
    bool,
    typer.Option(
        "--engine-later",
        help="Start even if the engine's URL is not reachable yet.",
        rich_help_panel=PIPELINE,
    ),
]
State = Annotated[
    str | None,
    typer.Option(
        metavar="S3-ADDRESS",
        help="Store checkpoints below s3://bucket/prefix instead of this machine, in a new folder that is "
        "deleted at the end.",
        rich_help_panel=PIPELINE,
    ),
]
WarmEvents = Annotated[
    int, typer.Option(min=1, help="Warm-up events, which are not counted.", rich_help_panel=EVENTS)
]
DataFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="JSON objects, one per line, instead of generated posts (id, user, text).",
        rich_help_panel=EVENTS,
    ),
]
SloMs = Annotated[
    float | None,
    typer.Option(
        help="Objective for goodput: time from an event to its committed result.", rich_help_panel=REPORT
    ),
]
SloUntil = Annotated[
    LatencyEnd, typer.Option(help="End of the latency that the objective is for.", rich_help_panel=REPORT)
]
Patience = Annotated[
    float,
    typer.Option(help="Maximum wait for commits after the last event, in seconds.", rich_help_panel=EVENTS),
]
Named = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=PID",
        help="Sample CPU and memory of another process on this machine. May be repeated.",
        rich_help_panel=REPORT,
    ),
]


HtmlFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the report as an HTML page.", rich_help_panel=REPORT),
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
            help="Use arrivals of a trace in Mooncake's or Azure's format.",
            rich_help_panel=LOAD,
        ),
    ] = None,
    speed: Speed = 1.0,
    events: Annotated[
        int | None,
        typer.Option(help="Number of events (default: 300, or all of the trace).", rich_help_panel=LOAD),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="With --rate, instead of --events: duration of the load.", rich_help_panel=LOAD),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            min=1,
            max=100,
            help="Runs of the load, each with another seed, without a restart.",
            rich_help_panel=LOAD,
        ),
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of times and posts.", rich_help_panel=LOAD)] = 0,
    find_rate: Annotated[
        bool,
        typer.Option(
            "--find-rate",
            help="Search for the highest rate at which the lag does not grow and the objective is kept. "
            "Starts at --rate, and tries each rate for --seconds (default: 30), or longer if needed.",
            rich_help_panel=LOAD,
        ),
    ] = False,
    data: DataFile = None,
    warm_events: WarmEvents = 20,
    patience: Patience = 60.0,
    slo_event_ms: SloMs = None,
    slo_until: SloUntil = LatencyEnd.committed,
    slo_share: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=1,
            help="With --find-rate: the share of events that must keep the objective.",
            rich_help_panel=REPORT,
        ),
    ] = 0.99,
    process: Named = None,
    json: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Measure a pipeline end to end: each event's latency from its own time to its committed result.

    Source and sinks are replaced by the measurement's own; your data is neither read nor written. The exit
    status is 1 if the figures are not valid, and 130 after Ctrl-C; what was measured until then is reported.
    """
    from forebay.bench.stream.events import EventSlo, StreamOptions
    from forebay.bench.stream.loads import EventLoadOptions

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
            raise SettingError(f"--find-rate: not allowed with {asked.fixed}")
        if repeats > 1:
            raise SettingError("--find-rate: not allowed with --repeats; it repeats the rate that it finds")
        search_rate(options, asked, found, json=json, html=html, share=slo_share)
        return
    loads = [asked.load(turn) for turn in range(repeats)]
    with reported(found, json, html):
        measure_loads(options, loads, found)


def state_path(text: str) -> S3Path:
    """Parse `--state`. Raises `SettingError`."""
    from forebay.clients.s3.location import s3_path

    try:
        return s3_path(text)
    except SettingError as error:
        raise SettingError(f"--state: {error}") from None


def check_searchable(options: StreamOptions) -> None:
    """Raise `SettingError` if no rate can be found: results that cover many events are too few to judge
    one."""
    from forebay.bench.stream.pipeline import read_pipeline
    from forebay.bench.stream.result_book import ManyToOne

    spec = read_pipeline(options.pipeline, options.settings)
    if spec.application is not None and ManyToOne.of(spec) is not None:
        raise SettingError(
            f"--find-rate: not available for application {spec.application.type}: each result covers many "
            "events, so there are too few results to judge a rate; use --rate"
        )


def check_files(json: str | None, html: Path | None, read: dict[str, Path | None]) -> None:
    """Raise `SettingError` if an output cannot be written or is also an input."""
    from forebay.bench.stream.document import events_path

    check_json(json)
    if html is not None:
        check_writable("--html", html)
    document = None if json is None or not shows_text(json) else Path(json)
    events = None if document is None else events_path(document)
    check_distinct({"--json": document, "the events of --json": events, "--html": html}, read)


def measure_loads(options: StreamOptions, loads: Sequence[EventLoad], found: list[MeasuredStream]) -> None:
    from forebay.bench.stream.document import measured_stream
    from forebay.bench.stream.loads import with_origin
    from forebay.bench.stream.measure import StreamSession

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
    from dataclasses import asdict

    from forebay.bench.stream.document import measured_stream
    from forebay.bench.stream.loads import RATE_PER_S, with_origin
    from forebay.bench.stream.measure import StreamSession
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
