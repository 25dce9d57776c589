"""`python -m benchmarks grid`: engines and streams over many settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from benchmarks.cli import common
from forebay.cli.options import option
from forebay.cli.output import JsonFile, errors_console, print_line, results_console
from forebay.errors import SettingError
from forebay.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.grid.engines import GivenEngines, LocalEngines
    from benchmarks.grid.measurement import Found
    from forebay.bench.metrics import Distribution


SIZES = {"requests": 100, "prompt_tokens": 128, "mean_tokens": 32.0, "limit_tokens": 256}
QUICK_SIZES = {"requests": 20, "prompt_tokens": 64, "mean_tokens": 16.0, "limit_tokens": 128}
QUICK_MODELS = ("default", "random:opt-125m")


def grid(
    *,
    quick: common.Quick = False,
    model: Annotated[
        list[str] | None,
        option(
            "`default`, a directory, a hub's OWNER/NAME, or `random:NAME`; may be repeated; default: all."
        ),
    ] = None,
    replicas: Annotated[
        list[str] | None,
        option("REPLICAS sharing all cores, or REPLICASxCORES; may be repeated; default: 1 and 2."),
    ] = None,
    subtasks: Annotated[
        list[int] | None, option("Subtasks of the pipeline; may be repeated; default: 1.")
    ] = None,
    arrival: Annotated[
        list[str] | None,
        option("`constant`, `poisson`, `bursts` or `trace`; may be repeated; default: all but the trace."),
    ] = None,
    tail: Annotated[
        list[str] | None, option("`exact`, `exponential` or `heavy`; may be repeated; default: all.")
    ] = None,
    trace: Annotated[
        Path | None, option("A trace (Mooncake's JSON lines or Azure's CSV) for arrivals.")
    ] = None,
    requests: Annotated[int | None, option("Requests per cell; default: 100, with --quick 20.")] = None,
    prompt_tokens: Annotated[
        int | None, option("Length of each prompt; default: 128, with --quick 64.")
    ] = None,
    mean_tokens: Annotated[
        float | None, option("Mean length of answers for every tail; default: 32, with --quick 16.")
    ] = None,
    limit: Annotated[
        int | None, option("Maximum length of an answer; default: 256, with --quick 128.")
    ] = None,
    load: Annotated[
        float, option("Arrival rate as a share of the engine's throughput with all requests at once.")
    ] = 0.6,
    rate: Annotated[
        float | None, option("Arrivals per second, the same for all engines, instead of --load.")
    ] = None,
    repeats: Annotated[int, option("Measurements of each cell.")] = 1,
    serving: Annotated[bool, option("Measure the engine alone.")] = True,
    stream: Annotated[bool, option("Measure a pipeline in front of the engine.")] = True,
    url: Annotated[
        list[str] | None,
        option("A server that runs already, instead of one started here; one for each replica."),
    ] = None,
    cores: common.Cores = None,
    dtype: common.Dtype = None,
    kv_cache_gib: Annotated[float, option("KV cache of each replica, in GiB.")] = 1.0,
    seed: common.Seed = 0,
    plot: common.Plot = None,
    json: JsonFile = None,
) -> None:
    """Measure throughput, event latency and resources over models, replicas, arrivals and lengths."""
    from benchmarks.batching.systems import engine_versions
    from benchmarks.grid.cells import (
        ARRIVALS,
        BURSTS,
        EXACT,
        HEAVY,
        POISSON,
        TAILS,
        TRACE,
        GridOptions,
        read_parallelism,
    )
    from benchmarks.grid.document import grid_document, grid_picture
    from benchmarks.grid.measurement import Measurement
    from forebay.engine.launch.architectures import ARCHITECTURES, PREFIX
    from forebay.pages.picture import write_picture
    from forebay.planning.simulate.traces import read_trace

    common.check_report_files(json, plot)
    asked_sizes = {
        "requests": requests,
        "prompt_tokens": prompt_tokens,
        "mean_tokens": mean_tokens,
        "limit_tokens": limit,
    }
    given = {name: value for name, value in asked_sizes.items() if value is not None}
    sizes: dict[str, Any] = {**(QUICK_SIZES if quick else SIZES), **given}
    count = int(sizes["requests"])
    arrivals_s = tuple(one.arrived_s for one in read_trace(trace)[:count]) if trace is not None else ()
    every = ("default", *(PREFIX + name for name in ARCHITECTURES))
    wholly = [name for name in ARRIVALS if name != TRACE]
    engines = _grid_engines(
        url, cores, dtype, kv_cache_gib, int(sizes["prompt_tokens"] + sizes["limit_tokens"])
    )
    asked = [read_parallelism(each) for each in replicas or (("1",) if url else ("1", "2"))]
    options = GridOptions(
        models=tuple(model or (("default",) if url else QUICK_MODELS if quick else every)),
        parallelisms=engines.sized(asked),
        subtasks=tuple(subtasks or (1,)),
        arrivals=tuple(arrival or ((POISSON, BURSTS) if quick else [*wholly, *([TRACE] if trace else [])])),
        tails=tuple(tail or ((EXACT, HEAVY) if quick else TAILS)),
        **sizes,
        load=load,
        rate_per_s=rate,
        trace_s=arrivals_s,
        repeats=repeats,
        serving=serving,
        stream=stream,
        seed=seed,
    )
    engines.check(options.models)
    measurement = Measurement(options, engines.start, common.note, local=not url)
    found: list[Found] = []
    try:
        for each in measurement.found():
            found.append(each)
            common.note(found_line(each))
    except KeyboardInterrupt:
        measurement.complete = False
    origin = common.provenance(seed=seed, data=trace)
    if not url:
        origin["engine_versions"] = engine_versions(load_settings())
    document = grid_document(options, found, complete=measurement.complete, provenance=origin)

    def draw() -> None:
        if plot is not None:
            write_picture(plot, grid_picture(document))

    common.report(
        json,
        document,
        lambda: show_grid(document),
        more_files=draw,
        passed=document["valid"],
        complete=measurement.complete,
    )


def _grid_engines(
    url: Sequence[str] | None, cores: str | None, dtype: str | None, kv_cache_gib: float, tokens: int
) -> LocalEngines | GivenEngines:
    from benchmarks.grid.engines import MAX_MODEL_LEN, GivenEngines, LocalEngines
    from forebay.engine.launch import ConsoleProgress, parse_cores

    if url:
        if cores is not None or dtype is not None:
            raise SettingError("--cores and --dtype are for an engine that is started here; leave out --url")
        return GivenEngines(tuple(url))
    return LocalEngines(
        settings=load_settings(),
        progress=ConsoleProgress(errors_console()),
        cores=parse_cores(cores) if cores is not None else (),
        dtype=dtype,
        kv_cache_gib=kv_cache_gib,
        max_model_len=max(MAX_MODEL_LEN, tokens),
    )


def found_line(found: Found) -> str:
    from benchmarks.grid.measurement import Capacity

    if isinstance(found, Capacity):
        name = f"{found.model}, {found.parallelism.name} replica(s)"
        if found.error is not None:
            return f"{name}: failed: {found.error}"
        rates = [
            f"{tail} lengths {served.measured.figures.output_tokens_per_s or 0:.0f} output tokens/s"
            for tail, served in found.bursts.items()
        ]
        return f"{name}: all at once: {'; '.join(rates)}"
    if found.error is not None:
        return f"{found.spec.name}: failed: {found.error}"
    words = []
    if found.serving is not None:
        words.append(f"engine alone {_p50(found.serving.measured.figures.distributions.get('e2el'))}")
    if found.stream is not None:
        latency = found.stream.figures.latency
        words += [f"{name} {_p50(latency.get(name))}" for name in ("answered", "committed")]
    invalid = f"; INVALID: {'; '.join(found.reasons)}" if found.reasons else ""
    return f"{found.spec.name}, {found.rate_per_s:.3g}/s: {', '.join(words)}{invalid}"


def _p50(found: Distribution | None) -> str:
    value = None if found is None else found.percentiles.get(50)
    return "never" if value is None else f"p50 {value:.2f} s"


def show_grid(document: dict[str, Any]) -> None:
    from benchmarks.grid.document import cell_rows, engine_rows

    for rows in (engine_rows(document), cell_rows(document)):
        if len(rows) > 1:
            common.show_table(rows[0], rows[1:])
    for each in (*document["engines"], *document["cells"]):
        if each["error"]:
            print_line(results_console(), f"FAILED: {each['model']}: {each['error']}")
