"""`python -m benchmarks batching` and `burst`: two published measurements, each as one command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from benchmarks.cli import common
from forebay.cli.options import option
from forebay.cli.output import JsonFile, check_writable, errors_console, print_line, results_console
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
    quick: common.Quick = False,
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
    latency: Annotated[bool, option("Also measure latency at two rates.")] = True,
    url: common.Url = None,
    model: Model = "default",
    python: Python = None,
    dtype: common.Dtype = None,
    cores: common.Cores = None,
    seed: common.Seed = 0,
    plot: common.Plot = None,
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

    common.check_report_files(json, plot)
    if requests is not None:
        check_writable("--requests", requests)
    wanted = set(system or (STATIC, CONTINUOUS))
    common.check_known("--system", wanted, (STATIC, CONTINUOUS))
    sizes = _sizes(quick=quick, scale=scale)
    options = replace(
        sizes,
        limits=tuple(limit or sizes.limits),
        latency_requests=sizes.latency_requests if latency else 0,
        batch_sizes=tuple(batch_size or sizes.batch_sizes),
        attentions=tuple(attention or sizes.attentions),
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
    measurement = Measurement(options, lambda words: print_line(console, words), local=url is None)
    cells: list[Cell] = []
    costs: list[BatchCost] = []

    def keep(cell: Cell) -> None:
        cells.append(cell)
        print_line(console, cell_line(cell))

    failure: ForebayError | None = None
    try:
        if CONTINUOUS in wanted:
            with systems.continuous() as target:
                for cell in measurement.continuous(target):
                    keep(cell)
        if STATIC in wanted and measurement.complete:
            for cell in measurement.static(systems.transformers, costs):
                keep(cell)
    except KeyboardInterrupt:
        measurement.complete = False
    except ForebayError as error:
        if not cells:
            raise
        # What was measured so far took long: write it, then raise.
        failure, measurement.complete = error, False
    found = Batching(options, tuple(cells), tuple(costs), measurement.complete)
    origin = systems.provenance(common.command_line(), seed=seed)
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
            common.show_table(*table(document))

    if failure is None:
        common.report(
            json, document, show, more_files=write_more, passed=document["valid"], complete=found.complete
        )
    else:
        common.report(json, document, show, more_files=write_more)
        raise failure


def burst(
    *,
    quick: common.Quick = False,
    requests: Annotated[
        int | None, option("Requests in the batch; default: 1000 with a GPU, else 500.")
    ] = None,
    url: common.Url = None,
    model: Annotated[
        str, option("`default`, a directory, or a hub's OWNER/NAME, without --url.")
    ] = "default",
    dtype: common.Dtype = None,
    cores: common.Cores = None,
    seed: common.Seed = 0,
    json: JsonFile = None,
) -> None:
    """Send many short requests as one batch, and one alone."""
    from benchmarks.batching.burst import REQUESTS, BurstOptions, burst_document, measure_burst
    from benchmarks.batching.systems import Systems
    from benchmarks.evaluation.batching import burst_table
    from forebay.bench.resources import processor_use
    from forebay.engine.launch import ConsoleProgress, parse_cores

    common.check_report_files(json)
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
        found, provenance=systems.provenance(common.command_line(), seed=seed), others_cores=others
    )

    def show() -> None:
        common.show_table(*burst_table(document))
        for reason in document["reasons"]:
            print_line(results_console(), f"INVALID: {reason}")

    common.report(json, document, show, passed=not document["reasons"], complete=found.complete)


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
