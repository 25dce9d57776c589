"""`python -m benchmarks interplay`: how a stream's settings affect the engine, and the reverse."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.cli.options import (
    INTERRUPTED,
    Cores,
    Dtype,
    Plot,
    Url,
    check_plot,
    command_line,
    note,
    show_table,
)
from forebay.cli.output import (
    JsonFile,
    check_json,
    errors_console,
    results_console,
    say,
    shows_text,
    write_json,
)
from forebay.settings import load_settings

if TYPE_CHECKING:
    from benchmarks.grid.engines import RunningEngine
    from benchmarks.interplay.measurement import PointRun, StartEngine
    from benchmarks.interplay.pipeline import InterplayOptions

EVENTS, QUICK_EVENTS = 150, 30


def interplay(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Few events: minutes, less accurate.")] = False,
    factor: Annotated[
        list[str] | None,
        typer.Option(
            help="Factors: capacity, checkpoint, ordering, prefix, kv-cache, subtasks, windows or "
            "bundle; may be repeated; default: all."
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="`default`, a directory, a hub's OWNER/NAME, or `random:NAME`.")
    ] = "default",
    events: Annotated[
        int | None, typer.Option(help="Events per point; default: 150, with --quick 30.")
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(help="Length of each prompt, in words.")] = 96,
    mean_tokens: Annotated[float, typer.Option(help="Mean length of answers.")] = 24,
    limit: Annotated[int, typer.Option(help="Maximum length of an answer.")] = 128,
    load: Annotated[
        float,
        typer.Option(help="Arrival rate as a share of the engine's throughput with all requests at once."),
    ] = 0.7,
    rate: Annotated[float | None, typer.Option(help="Arrivals per second, instead of --load.")] = None,
    url: Url = None,
    cores: Cores = None,
    dtype: Dtype = None,
    seed: Annotated[int, typer.Option(help="Seed of lengths, times and keys.")] = 0,
    plot: Plot = None,
    json: JsonFile = None,
) -> None:
    """Vary one setting of a stream at a time, and measure what it does to the engine and to events."""
    from benchmarks.batching.systems import engine_versions
    from benchmarks.interplay.document import interplay_document, interplay_picture
    from benchmarks.interplay.factors import FACTORS, KV_CACHE_GIB, points
    from benchmarks.interplay.measurement import InterplayMeasurement
    from benchmarks.interplay.pipeline import InterplayOptions
    from forebay.bench.provenance import provenance
    from forebay.pages.picture import write_picture

    check_json(json)
    check_plot(plot)
    options = InterplayOptions(
        factors=tuple(factor or FACTORS),
        model=model,
        events=events or (QUICK_EVENTS if quick else EVENTS),
        prompt_tokens=prompt_tokens,
        mean_tokens=mean_tokens,
        limit_tokens=limit,
        load=load,
        rate_per_s=rate,
        seed=seed,
    )
    wanted = points(options.factors)
    if url is not None:
        wanted = [point for point in wanted if point.kv_cache_gib == KV_CACHE_GIB]
    start = _engine(url, model, cores, dtype, options)
    measurement = InterplayMeasurement(options, start)
    found: list[PointRun] = []
    try:
        for each in measurement.found(wanted):
            found.append(each)
            note(point_line(each))
    except KeyboardInterrupt:
        measurement.complete = False
    origin = provenance(command=command_line(), target=url, seed=seed)
    if url is None:
        origin["engine_versions"] = engine_versions(load_settings())
    document = interplay_document(
        options,
        found,
        rate_per_s=measurement.rate_per_s,
        expected=len(wanted),
        complete=measurement.complete,
        provenance=origin,
    )
    write_json(json, document)
    if plot is not None:
        write_picture(plot, interplay_picture(document))
    if shows_text(json):
        show_interplay(document)
    if not measurement.complete:
        raise typer.Exit(INTERRUPTED)
    if not document["valid"]:
        raise typer.Exit(1)


def _engine(
    url: str | None, model: str, cores: str | None, dtype: str | None, options: InterplayOptions
) -> StartEngine:
    from benchmarks.grid.cells import Parallelism
    from benchmarks.grid.engines import GivenEngines, LocalEngines
    from forebay.engine.launch import ConsoleProgress, parse_cores

    def engines(kv_cache_gib: float) -> GivenEngines | LocalEngines:
        if url is not None:
            return GivenEngines((url,))
        return LocalEngines(
            settings=load_settings(),
            progress=ConsoleProgress(errors_console()),
            cores=parse_cores(cores) if cores is not None else (),
            dtype=dtype,
            kv_cache_gib=kv_cache_gib,
            max_model_len=options.max_model_len(kv_cache_gib),
        )

    def start(kv_cache_gib: float) -> AbstractContextManager[RunningEngine]:
        return engines(kv_cache_gib).start(model, Parallelism())

    engines(1.0).check([model])
    return start


def point_line(found: PointRun) -> str:
    from benchmarks.grid.signals import sample_figures

    if found.stream is None:
        return f"{found.point.name}: failed: {found.error}"
    run, latency = found.stream.run, found.stream.figures.latency
    running = sample_figures(run.samples, run.duration_s).get("running_mean", 0.0)
    answered = latency.get("answered")
    p50_s = None if answered is None else answered.percentiles.get(50)
    invalid = f"; INVALID: {'; '.join(found.reasons)}" if found.reasons else ""
    told = "no answer" if p50_s is None else f"answered p50 {p50_s:.2f} s"
    return f"{found.point.name}: {running:.1f} running on average, {told}{invalid}"


def show_interplay(document: dict[str, Any]) -> None:
    from benchmarks.interplay.document import SHORT, point_rows

    heads, *rows = point_rows(document, SHORT)
    console = results_console()
    show_table(heads, rows)
    if document["rate_per_s"]:
        say(console, f"{document['rate_per_s']:.2f} events/s")
    for cell in document["cells"]:
        for reason in cell["reasons"]:
            say(console, f"INVALID: {cell['factor']}, {cell['value']}: {reason}")
