"""`python -m benchmarks cost`: processor and memory of each part of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.cli.options import note, report
from forebay.cli.output import JsonFile, check_json, results_console, say

if TYPE_CHECKING:
    from rich.console import Console

    from benchmarks.cost import Cost, LoadCost

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


def cost(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A third of the time, less accurate.")] = False,
    json: JsonFile = None,
) -> None:
    """Measure the processor time and memory of each part of a run, from idle to its highest rate; takes
    minutes."""
    from benchmarks.cost import QUICK, CostOptions, cost_document, measure_cost

    check_json(json)
    found = measure_cost(QUICK if quick else CostOptions(), note)
    report(json, cost_document(found), lambda: show_cost(found, results_console()))


def show_cost(found: Cost, console: Console) -> None:
    """The figures as a table: shares of a core if idle, else milliseconds per event."""
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
