"""`forebay bench stream` and `goodput`: measure a pipeline end to end, also while parts of it are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.bench_serve import INVALID_STATUS, read_processes
from forebay.cli.bench_stream_figures import (
    describe_trial,
    reported,
    show_goodput,
    show_rate,
    stream_progress,
)
from forebay.cli.options import (
    LOAD,
    PIPELINE,
    REPORT,
    Burstiness,
    BurstsOf,
    EvenGaps,
    HtmlFile,
    Processes,
    Ramp,
    SetValues,
    Speed,
    TraceFile,
    option,
)
from forebay.cli.output import JsonFile, blamed, check_outputs, errors_console, print_line
from forebay.errors import SettingError
from forebay.untrusted_text import counted

if TYPE_CHECKING:
    from forebay.bench.stream.document import MeasuredStream
    from forebay.bench.stream.events import EventLoad, StreamOptions
    from forebay.bench.stream.kills import Kill
    from forebay.bench.stream.loads import EventLoadOptions
    from forebay.bench.stream.measure import StreamSession
    from forebay.bench.stream.rate_search import Trial
    from forebay.bench.stream.records import StreamRun

    Measured = Callable[[StreamRun], MeasuredStream]

EVENTS, KILLS = "Events", "What is killed"


class LatencyEnd(str, Enum):
    answered = "answered"
    committed = "committed"


Pipeline = Annotated[Path, typer.Argument(help="A pipeline file (YAML).", metavar="PIPELINE")]
EngineUrls = Annotated[
    list[str] | None,
    option(
        "URL of an engine, instead of the file's; may be repeated. If neither names one, a local "
        "engine is started.",
        panel=PIPELINE,
    ),
]
EngineLater = Annotated[
    bool, option("Start even if the engine's URL is not reachable yet.", "--engine-later", panel=PIPELINE)
]
State = Annotated[
    str | None,
    option(
        "Store checkpoints below s3://bucket/prefix instead of this machine, in a new folder that is "
        "deleted at the end.",
        panel=PIPELINE,
        metavar="S3-ADDRESS",
    ),
]
WarmEvents = Annotated[int, option("Warm-up events, which are not counted.", panel=EVENTS, min=1)]
DataFile = Annotated[
    Path | None,
    option(
        "JSON objects, one per line, instead of generated posts (id, user, text).",
        panel=EVENTS,
        metavar="FILE",
    ),
]
SloMs = Annotated[
    float | None, option("Objective for goodput: time from an event to its committed result.", panel=REPORT)
]
SloUntil = Annotated[LatencyEnd, option("End of the latency that the objective is for.", panel=REPORT)]
Patience = Annotated[
    float, option("Maximum wait for commits after the last event, in seconds.", panel=EVENTS)
]


def stream(
    pipeline: Pipeline,
    *,
    set: SetValues = None,
    engine: EngineUrls = None,
    engine_later: EngineLater = False,
    state: State = None,
    rate: Annotated[
        float | None, option("Events per second, with exponential gaps (Poisson); default: 10.", panel=LOAD)
    ] = None,
    burstiness: Burstiness = None,
    constant: EvenGaps = False,
    ramp: Ramp = None,
    bursts: BurstsOf = None,
    trace: TraceFile = None,
    speed: Speed = 1.0,
    events: Annotated[
        int | None, option("Number of events (default: 300, or all of the trace).", panel=LOAD)
    ] = None,
    seconds: Annotated[
        float | None, option("With --rate, instead of --events: duration of the load.", panel=LOAD)
    ] = None,
    repeats: Annotated[
        int, option("Runs of the load without a restart, each with another seed.", panel=LOAD, min=1, max=100)
    ] = 1,
    seed: Annotated[int, option("Seed of times and posts.", panel=LOAD)] = 0,
    find_rate: Annotated[
        bool,
        option(
            "Find the highest rate whose lag does not grow and that keeps the objective. Begins with --rate; "
            "tries each for --seconds (default: 30), or longer.",
            "--find-rate",
            panel=LOAD,
        ),
    ] = False,
    data: DataFile = None,
    warm_events: WarmEvents = 20,
    patience: Patience = 60.0,
    slo_event_ms: SloMs = None,
    slo_until: SloUntil = LatencyEnd.committed,
    slo_share: Annotated[
        float,
        option("With --find-rate: share of events within the objective.", panel=REPORT, min=0.01, max=1),
    ] = 0.99,
    process: Processes = None,
    json: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Measure a pipeline end to end: each event's latency from its own time to its committed result.

    Source and sinks are replaced by the measurement's own; your data is neither read nor written. The exit
    status is 1 if the figures are not valid, and 130 after Ctrl-C; what was measured until then is reported.
    """
    from forebay.bench.stream.events import EventSlo, StreamOptions
    from forebay.bench.stream.loads import EventLoadOptions
    from forebay.bench.stream.pipeline import read_pipeline
    from forebay.bench.stream.result_book import ManyToOne
    from forebay.clients.s3.location import s3_path

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
    with blamed("--state"):
        location = None if state is None else s3_path(state)
    slo = None if slo_event_ms is None else EventSlo(within_s=slo_event_ms / 1000, until=slo_until.value)
    options = StreamOptions(
        pipeline=pipeline,
        settings=set or (),
        engine=engine or (),
        engine_later=engine_later,
        state=location,
        load=asked.load(),
        warm_events=warm_events,
        slo=slo,
        patience_s=patience,
        processes=read_processes(process or ()),
    )
    found: list[MeasuredStream] = []
    if find_rate:
        spec = read_pipeline(options.pipeline, options.settings)
        if spec.application is not None and ManyToOne.of(spec) is not None:
            raise SettingError(
                f"--find-rate: not available for application {spec.application.type}: each result covers "
                "many events, so there are too few results to judge a rate; use --rate"
            )
        if asked.fixed:
            raise SettingError(f"--find-rate: not allowed with {asked.fixed}")
        if repeats > 1:
            raise SettingError("--find-rate: not allowed with --repeats; it repeats the rate that it finds")
        search_rate(options, asked, found, json=json, html=html, share=slo_share)
        return
    loads = [asked.load(turn) for turn in range(repeats)]
    with reported(found, json, html):
        measure_loads(options, loads, found)


def check_files(json: str | None, html: Path | None, read: dict[str, Path | None]) -> None:
    from forebay.bench.stream.document import events_path

    check_outputs(json, {"--html": html}, read, ("events", events_path))


@contextmanager
def open_session(options: StreamOptions) -> Iterator[tuple[StreamSession, Measured]]:
    """A warm session, and a function that judges one of its runs."""
    from forebay.bench.stream.document import measured_stream
    from forebay.bench.stream.loads import with_origin
    from forebay.bench.stream.measure import StreamSession

    console = errors_console()
    with (
        stream_progress(console) as on_progress,
        StreamSession(
            options, note=lambda text: print_line(console, text), on_progress=on_progress
        ) as session,
    ):
        session.warm_up()
        yield session, lambda run: measured_stream(with_origin(run, session, options), options.slo)


def measure_loads(options: StreamOptions, loads: Sequence[EventLoad], found: list[MeasuredStream]) -> None:
    with open_session(options) as (session, measured):
        for number, load in enumerate(loads, 1):
            turn = f" ({number} of {len(loads)})" if len(loads) > 1 else ""
            print_line(errors_console(), f"measuring {counted(load.events, 'event')}{turn}")
            run = session.measure(load)
            found.append(measured(run))
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
    from forebay.bench.stream.loads import RATE_PER_S
    from forebay.bench.stream.rate_search import RateSearch, trials

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
        open_session(options) as (session, measured),
    ):
        for trial, run in trials(session, search, asked.at_rate, slo=options.slo, share=share):
            made.append(trial)
            found.append(measured(run))
            print_line(errors_console(), f"{trial.rate_per_s:.4g} events/s: {describe_trial(trial)}")
    if search.found_per_s is None:
        raise typer.Exit(INVALID_STATUS)


def goodput(
    pipeline: Pipeline,
    *,
    slo_event_ms: Annotated[float, option("The objective: time from an event to its committed result.")],
    slo_until: SloUntil = LatencyEnd.committed,
    set: SetValues = None,
    engine: EngineUrls = None,
    engine_later: EngineLater = False,
    rate: Annotated[float, option("Events per second, with exponential gaps.", panel=LOAD)] = 10.0,
    constant: Annotated[bool, option("Constant gaps.", "--constant", panel=LOAD)] = False,
    seconds: Annotated[float, option("Duration of each run.", panel=LOAD)] = 90.0,
    kill: Annotated[
        list[str] | None,
        option(
            "Kill jvm, command, or an engine started here, this long after the start. May be repeated.",
            panel=KILLS,
            metavar="PART:SECONDS",
        ),
    ] = None,
    kills: Annotated[
        int | None, option("Number of kills at random times.", panel=KILLS, min=1, max=1000)
    ] = None,
    repeats: Annotated[
        int, option("Pairs of runs, alternating without and with kills.", panel=LOAD, min=1, max=100)
    ] = 1,
    seed: Annotated[int, option("Seed of times, posts and kills.", panel=LOAD)] = 0,
    data: DataFile = None,
    warm_events: WarmEvents = 20,
    patience: Patience = 120.0,
    json: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Measure how many events have their committed result in time, without and with parts killed.

    Without --kill and --kills, only without. The exit status is 1 if an event was lost or duplicated or the
    figures are not valid, and 130 after Ctrl-C.
    """
    from forebay.bench.stream.events import EventSlo, StreamOptions, due_offsets
    from forebay.bench.stream.kills import PARTS, check_kills, drawn_kills, goodput_document, read_kill
    from forebay.bench.stream.loads import EventLoadOptions
    from forebay.bench.stream.pipeline import read_pipeline
    from forebay.bench.stream.process import starts_engine

    check_files(json, html, {"--data": data, "PIPELINE": pipeline})
    if kill and kills is not None:
        raise SettingError("--kill and --kills: use only one of them")
    asked = EventLoadOptions(rate=rate, constant=constant, seconds=seconds, data=data, seed=seed)
    options = StreamOptions(
        pipeline=pipeline,
        settings=set or (),
        engine=engine or (),
        engine_later=engine_later,
        load=asked.load(),
        warm_events=warm_events,
        slo=EventSlo(within_s=slo_event_ms / 1000, until=slo_until.value),
        patience_s=patience,
    )
    loads = [asked.load(turn) for turn in range(repeats)]
    chosen = [read_kill(text) for text in kill or ()]
    spec = read_pipeline(pipeline, options.settings)
    if not starts_engine(spec, options.engine) and any(each.part == "engine" for each in chosen):
        raise SettingError(
            "--kill engine: only an engine that is started here can be killed; leave out --engine, and "
            "engine.url in the file"
        )
    for load in loads:
        check_kills(chosen, due_offsets(load)[-1])

    def kills_of(number: int, engine_is_ours: bool) -> Sequence[Kill]:
        parts = [part for part in PARTS if part != "engine" or engine_is_ours]
        return drawn_kills(kills, seconds, seed + number, parts) if kills else chosen

    found: list[MeasuredStream] = []
    more = partial(goodput_document, found)
    with reported(found, json, html, command="goodput", more=more, answer=show_goodput):
        _measure(options, loads, found, kills_of)
    if any(one.figures.lost or one.figures.doubled or one.figures.miscounted for one in found):
        raise typer.Exit(INVALID_STATUS)


def _measure(
    options: StreamOptions,
    loads: Sequence[EventLoad],
    found: list[MeasuredStream],
    kills_of: Callable[[int, bool], Sequence[Kill]],
) -> None:
    """Measure each load without kills, then with those of `kills_of(number, engine_is_ours)`."""
    from forebay.bench.stream.rate_search import SETTLE_S

    with open_session(options) as (session, measured):
        ours = session.engines.ours is not None
        planned = [kills_of(number, ours) for number in range(len(loads))]
        for load, kills in zip(loads, planned, strict=True):
            for now in ((), kills) if kills else ((),):
                print_line(
                    errors_console(),
                    f"measuring {counted(load.events, 'event')}, {counted(len(now), 'kill')}",
                )
                run = session.measure(load, now)
                found.append(measured(run))
                if not run.complete or not session.settle(SETTLE_S):
                    return
