"""`forebay bench`: measure your engine and machine, and Forebay's own overhead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.bench_autoscale import autoscale
from forebay.cli.bench_compare import compare_runs
from forebay.cli.bench_goodput import goodput
from forebay.cli.bench_grid import grid
from forebay.cli.bench_interplay import interplay
from forebay.cli.bench_presets import batching, burst
from forebay.cli.bench_report import report_run
from forebay.cli.bench_serve import serve
from forebay.cli.bench_stream import stream
from forebay.cli.output import (
    Command,
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
    from rich.console import Console

    from forebay.bench.cost import Cost, LoadCost

bench = typer.Typer(help="Measure engines and pipelines on this machine.", no_args_is_help=True)


@bench.callback()
def _bench() -> None:
    """Measure engines and pipelines on this machine."""


bench.command(cls=Command)(autoscale)
bench.command(cls=Command)(batching)
bench.command(cls=Command)(burst)
bench.command(cls=Command)(grid)
bench.command(cls=Command)(interplay)
bench.command(cls=Command)(serve)
bench.command(cls=Command)(stream)
bench.command(cls=Command)(goodput)
bench.command(name="report")(report_run)
bench.command(name="compare", cls=Command)(compare_runs)


@bench.command(name="engine", cls=Command)
def engine_settings(
    *,
    setting: Annotated[
        list[str] | None, typer.Option(help="A setting to measure; may be repeated; default: all.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each load, in seconds.")] = 8.0,
    json: JsonFile = None,
) -> None:
    """Compare settings of a local engine on this machine, idle and with one core busy. Takes minutes."""
    from rich.table import Table

    from forebay.bench.engine_settings import SETTINGS, measure_settings
    from forebay.engine.launch import ConsoleProgress

    check_json(json)
    names, console = setting or list(SETTINGS), errors_console()
    say(console, f"{len(names)} settings: each starts vLLM, which takes about a minute.")
    figures = []
    for found in measure_settings(names, load_settings(), seconds=seconds, progress=ConsoleProgress(console)):
        figures.append(found)
        say(
            console,
            f"{found.name}: {found.idle_tokens_per_s} tokens/s, with one core busy {found.busy_tokens_per_s}",
        )
    write_json(json, [asdict(found) for found in figures])
    if not shows_text(json):
        return
    table = Table("setting", "", "ready, s", "tokens/s, idle", "tokens/s, a core busy")
    for found in figures:
        table.add_row(*map(str, asdict(found).values()))
    results_console().print(table)


PARTS = {
    "jit": "JVM: compilers",
    "memory": "JVM: garbage collector",
    "flink": "Flink's own threads",
    "source": "source",
    "operator": "operator",
    "calls": "calls (event loop, HTTP)",
    "client": "Python that started the JVM",
    "command": "forebay run",
}
OUTSIDE = {"engine": "scripted engine", "source": "scripted feed"}
MEMORY = {"jvm": "JVM", "client": "Python that started it", "command": "forebay run"}


@bench.command(name="cost", cls=Command)
def cost(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A third of the time, less accurate.")] = False,
    json: JsonFile = None,
) -> None:
    """Measure the CPU time and memory of each part of a run, from idle to maximum load. Takes minutes."""
    from forebay.bench.cost import QUICK, CostOptions, cost_document, measure_cost

    check_json(json)
    console = errors_console()
    found = measure_cost(QUICK if quick else CostOptions(), lambda words: say(console, words))
    write_json(json, cost_document(found))
    if shows_text(json):
        show_cost(found, results_console())


def show_cost(found: Cost, console: Console) -> None:
    from rich.table import Table

    def row(name: str, values: Iterable[str]) -> None:
        table.add_row(name, *values)

    def used(load: LoadCost, processor_s: float) -> str:
        per_event = load.ms_per_event(processor_s)
        return f"{processor_s / load.seconds:.2%}" if per_event is None else f"{per_event:.2f} ms"

    table = Table("processor, per event", box=None)
    for load in found.loads:
        table.add_column(
            "idle, of a core" if load.rate_per_s == 0 else f"{load.events_per_s:.4g}/s", justify="right"
        )
    for part, name in PARTS.items():
        row(name, (used(load, load.processor_s[part]) for load in found.loads))
    row("all of Forebay", (used(load, sum(load.processor_s.values())) for load in found.loads))
    for part, name in OUTSIDE.items():
        row(f"outside: {name}", (used(load, load.outside_s[part]) for load in found.loads))
    row("", ())
    for part, name in MEMORY.items():
        row(f"memory: {name}", (f"{load.memory_mb[part]:.0f} MB" for load in found.loads))
    row("memory: all", (f"{sum(load.memory_mb.values()):.0f} MB" for load in found.loads))
    console.print(table)
    say(console, f"first request after {found.first_request_s:.1f} s; {found.cores} cores, {found.processor}")
