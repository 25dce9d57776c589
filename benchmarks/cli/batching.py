"""`python -m benchmarks batching` and `burst`: two published measurements, each as one command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from benchmarks.cli.options import (
    Cores,
    Dtype,
    Plot,
    Quick,
    Seed,
    Url,
    check_known,
    check_report_files,
    command_line,
    report,
    show_table,
)
from forebay.cli.options import option
from forebay.cli.output import JsonFile, check_writable, errors_console, results_console, say
from forebay.errors import ForebayError, SettingError
from forebay.settings import load_settings

if TYPE_CHECKING:
    from benchmarks.batching.measurement import BatchingOptions, Cell
    from benchmarks.batching.transformers import BatchCost

GPU = Path("/dev/nvidiactl")

Python = Annotated[Path | None, option("A Python with torch and transformers; default: the local engine's.")]
Model = Annotated[str, option("`default`, a directory, or a hub's OWNER/NAME; with --url, the served model.")]


def batching(
    *,
    quick: Quick = False,
    scale: Annotated[
        float | None,
        option(
            "Share of the study's 1,000 requests; default: 1 with a GPU, else 0.064. Below 1, the "
            "study's rates are scaled to the engine's throughput."
        ),
    ] = None,
    limit: Annotated[
        list[int] | None, option("A length limit to measure; may be repeated; default: all four.")
    ] = None,
    system: Annotated[
        list[str] | None, option("`static` or `continuous`; may be repeated; default: both.")
    ] = None,
    batch_size: Annotated[
        list[int] | None, option("A batch size for static batching; may be repeated; default: powers of 2.")
    ] = None,
    attention: Annotated[
        list[str] | None, option("An attention of transformers; may be repeated; default: sdpa and eager.")
    ] = None,
    longest_of_all: Annotated[
        bool, option("Also measure the study's stricter form of static batching.", "--longest-of-all")
    ] = False,
    random_lengths: Annotated[
        bool,
        option(
            "Draw the answers' lengths at random also for few requests, instead of quantiles.",
            "--random-lengths",
        ),
    ] = False,
    latency: Annotated[bool, option("Also measure latency at two rates.")] = True,
    url: Url = None,
    model: Model = "default",
    python: Python = None,
    dtype: Dtype = None,
    cores: Cores = None,
    seed: Seed = 0,
    plot: Plot = None,
    requests: Annotated[
        Path | None, option("Write every run to this JSON, and its requests next to it.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Compare static batching (transformers) with continuous batching (vLLM), as the study of 2023 did."""
    from benchmarks.batching.document import batching_document, batching_picture
    from benchmarks.batching.measurement import CONTINUOUS, STATIC, Batching, Measurement
    from benchmarks.batching.systems import Systems
    from benchmarks.evaluation.batching import latency_table, throughput_table
    from forebay.bench.report.document import Report, write_report
    from forebay.engine.launch import ConsoleProgress, parse_cores
    from forebay.pages.picture import write_picture

    check_report_files(json, plot)
    if requests is not None:
        check_writable("--requests", requests)
    wanted = set(system or (STATIC, CONTINUOUS))
    check_known("--system", wanted, (STATIC, CONTINUOUS))
    sizes = _sizes(quick=quick, scale=scale)
    options = replace(
        sizes,
        limits=tuple(limit or sizes.limits),
        latency_requests=sizes.latency_requests if latency else 0,
        batch_sizes=tuple(batch_size or sizes.batch_sizes),
        attentions=tuple(attention or sizes.attentions),
        longest_of_all=longest_of_all,
        even_lengths=sizes.even_lengths and not random_lengths,
        seed=seed,
    )
    console = errors_console()
    progress = ConsoleProgress(console)
    systems = Systems(
        settings=load_settings(),
        progress=progress,
        url=url,
        python=python,
        model=model,
        dtype=dtype,
        cores=parse_cores(cores) if cores is not None else (),
        max_model_len=max(2048, options.prompt_tokens + max(options.limits)),
    )
    systems.model_directory()  # refuses a wrong name before anything starts
    measurement = Measurement(options, lambda words: say(console, words), local=url is None)
    cells: list[Cell] = []
    costs: list[BatchCost] = []

    def note(cell: Cell) -> None:
        cells.append(cell)
        say(console, cell_line(cell))

    failure: ForebayError | None = None
    try:
        if CONTINUOUS in wanted:
            with systems.continuous() as target:
                for cell in measurement.continuous(target):
                    note(cell)
        if STATIC in wanted and measurement.complete:
            for cell in measurement.static(systems.transformers, costs):
                note(cell)
    except KeyboardInterrupt:
        measurement.complete = False
    except ForebayError as error:
        if not cells:
            raise
        # What was measured so far took long: write it, then raise.
        failure, measurement.complete = error, False
    found = Batching(options, tuple(cells), tuple(costs), measurement.complete)
    origin = systems.provenance(command_line(), seed=seed)
    document = batching_document(found, held_equal=systems.held_equal(), provenance=origin)

    def write_more() -> None:
        if requests is not None:
            runs = (
                replace(
                    cell.measured,
                    run=replace(cell.run, provenance={**origin, "target": cell.run.asked["target"]}),
                )
                for cell in found.cells
            )
            write_report(requests, Report("batching", tuple(runs)))
        if plot is not None:
            title = f"{systems.held_equal()['model']}, {systems.number_type()}"
            write_picture(plot, batching_picture(document, title))

    def show() -> None:
        for table in (throughput_table, latency_table):
            show_table(*table(document))

    if failure is None:
        report(json, document, show, more_files=write_more, passed=document["valid"], complete=found.complete)
    else:
        report(json, document, show, more_files=write_more)
        raise failure


def burst(
    *,
    quick: Quick = False,
    requests: Annotated[
        int | None, option("Requests in the batch; default: 1000 with a GPU, else 500.")
    ] = None,
    url: Url = None,
    model: Annotated[
        str, option("`default`, a directory, or a hub's OWNER/NAME, without --url.")
    ] = "default",
    dtype: Dtype = None,
    cores: Cores = None,
    seed: Seed = 0,
    json: JsonFile = None,
) -> None:
    """Send many short requests as one batch, and one alone."""
    from benchmarks.batching.burst import REQUESTS, BurstOptions, burst_document, measure_burst
    from benchmarks.batching.systems import Systems
    from benchmarks.evaluation.batching import burst_table
    from forebay.bench.resources import processor_use
    from forebay.engine.launch import ConsoleProgress, parse_cores

    check_report_files(json)
    if quick and requests is not None:
        raise SettingError("--quick and --requests: use only one of them")
    if requests is None:
        requests = 100 if quick else REQUESTS if GPU.exists() else 500
    options = BurstOptions(requests=requests, seed=seed)
    systems = Systems(
        settings=load_settings(),
        progress=ConsoleProgress(errors_console()),
        url=url,
        model=model,
        dtype=dtype,
        cores=parse_cores(cores) if cores is not None else (),
    )
    with systems.continuous() as target:
        before = processor_use()
        found = measure_burst(target.url, None, options)
        others = before.others_cores(processor_use()) if url is None else None
    document = burst_document(
        found, provenance=systems.provenance(command_line(), seed=seed), others_cores=others
    )

    def show() -> None:
        show_table(*burst_table(document))
        for reason in document["reasons"]:
            say(results_console(), f"INVALID: {reason}")

    report(json, document, show, passed=not document["reasons"], complete=found.complete)


def _sizes(*, quick: bool, scale: float | None) -> BatchingOptions:
    from benchmarks.batching.measurement import PROCESSOR, QUICK, BatchingOptions

    if quick and scale is not None:
        raise SettingError("--quick and --scale: use only one of them")
    whole = BatchingOptions() if GPU.exists() else PROCESSOR
    if scale is None:
        return QUICK if quick else whole
    if not 0 < scale <= 1:
        raise SettingError(f"--scale: expected more than 0 and at most 1, found {scale:g}")
    count = max(1, round(scale * BatchingOptions().requests))
    return replace(
        whole, requests=count, latency_requests=count, relative_rates=scale < 1, even_lengths=scale < 1
    )


def cell_line(cell: Cell) -> str:
    where = f"limit {cell.limit}" if cell.limit else f"{cell.rate_per_s:.3g} requests/s"
    how = f" (batches of {cell.batch_size}, {cell.attention})" if cell.batch_size else ""
    tokens = cell.figures.total_tokens_per_s
    rate = "no figure" if tokens is None else f"{tokens:.0f} tokens/s"
    invalid = f"; INVALID: {'; '.join(cell.reasons)}" if cell.reasons else ""
    return f"{cell.system}{how}, {where}: {rate}, {cell.run.duration_s:.1f} s{invalid}"
