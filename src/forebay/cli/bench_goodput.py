"""`forebay bench goodput`: the share of events within their objective, also while parts are killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.bench_serve import INVALID_STATUS
from forebay.cli.bench_stream import (
    DataFile,
    EngineLater,
    EngineUrls,
    HtmlFile,
    LatencyEnd,
    Patience,
    Pipeline,
    SetValues,
    SloUntil,
    WarmEvents,
    check_files,
)
from forebay.cli.bench_stream_figures import reported, show_goodput, stream_progress
from forebay.cli.output import JsonFile, errors_console, say
from forebay.cli.schedule_options import LOAD
from forebay.errors import SettingError
from forebay.untrusted_text import counted

if TYPE_CHECKING:
    from forebay.bench.stream.document import MeasuredStream
    from forebay.bench.stream.events import EventLoad, StreamOptions
    from forebay.bench.stream.kills import Kill

KILLS = "What is killed"


def goodput(
    pipeline: Pipeline,
    *,
    slo_event_ms: Annotated[
        float, typer.Option(help="The objective: time from an event to its committed result.")
    ],
    slo_until: SloUntil = LatencyEnd.committed,
    set: SetValues = None,
    engine: EngineUrls = None,
    engine_later: EngineLater = False,
    rate: Annotated[
        float, typer.Option(help="Events per second, with exponential gaps.", rich_help_panel=LOAD)
    ] = 10.0,
    constant: Annotated[
        bool, typer.Option("--constant", help="Constant gaps.", rich_help_panel=LOAD)
    ] = False,
    seconds: Annotated[float, typer.Option(help="Duration of each run.", rich_help_panel=LOAD)] = 90.0,
    kill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART:SECONDS",
            help="Kill a part this long after the start: jvm, command, or engine (if it was started here). "
            "May be repeated.",
            rich_help_panel=KILLS,
        ),
    ] = None,
    kills: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Number of kills at random times.", rich_help_panel=KILLS),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="Pairs of runs, alternating without and with kills.", rich_help_panel=LOAD
        ),
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of times, posts and kills.", rich_help_panel=LOAD)] = 0,
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
    chosen = [read_kill(words) for words in kill or ()]
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
    from forebay.bench.stream.document import measured_stream
    from forebay.bench.stream.loads import with_origin
    from forebay.bench.stream.measure import StreamSession
    from forebay.bench.stream.rate_search import SETTLE_S

    console = errors_console()
    with (
        stream_progress(console) as on_progress,
        StreamSession(options, note=lambda words: say(console, words), on_progress=on_progress) as session,
    ):
        ours = session.engines.ours is not None
        planned = [kills_of(number, ours) for number in range(len(loads))]
        session.warm_up()
        for load, kills in zip(loads, planned, strict=True):
            for now in ((), kills) if kills else ((),):
                say(console, f"measuring {counted(load.events, 'event')}, {counted(len(now), 'kill')}")
                run = session.measure(load, now)
                found.append(measured_stream(with_origin(run, session, options), options.slo))
                if not run.complete or not session.settle(SETTLE_S):
                    return
