"""`python -m benchmarks autoscale`: compares scaling policies in a simulator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.cli.options import Plot, check_plot, command_line, note, report, show_table
from forebay.cli.output import JsonFile, check_json
from forebay.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.autoscale.measure import Comparison

TRACE, DAYS = "trace", "days"
BURSTS = {"bursts-3x": (3.0, 3.0), "bursts-10x": (10.0, 2.0)}
"""Multiple of the rate, and busy replicas between bursts."""
LOADS = (TRACE, DAYS, *BURSTS)


def autoscale(
    *,
    trace: Annotated[Path, typer.Option(help="Requests in Mooncake's or Azure's format.")],
    load: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(LOADS)}; may be repeated; default: all."),
    ] = None,
    engine: Annotated[str, typer.Option(help="Calibrated engine: llama-8b or qwen-32b.")] = "llama-8b",
    boot: Annotated[
        list[float] | None, typer.Option(help="Boot time in seconds; may be repeated; default: 60 and 180.")
    ] = None,
    slo: Annotated[
        list[float] | None,
        typer.Option(help="Maximum wait of a request in seconds; may be repeated; default: 10 and 60."),
    ] = None,
    stretch: Annotated[float, typer.Option(help="Stretch the trace by this factor.")] = 4.0,
    replicas: Annotated[float, typer.Option(help="Replicas that trace and days keep busy on average.")] = 6.0,
    seed: Annotated[int, typer.Option(help="Seed of the arrivals.")] = 0,
    plot: Plot = None,
    json: JsonFile = None,
) -> None:
    """Compare the default scaling policy with tuned alternatives, fixed fleets and an oracle.

    The trace is stretched; days and bursts are synthetic, with request lengths from the trace. Takes minutes,
    or half an hour for days.
    """
    from benchmarks.autoscale.fluid import WorkModel
    from benchmarks.autoscale.loads import bursts, days, stretched
    from benchmarks.autoscale.measure import GOAL, compare_policies, frontiers_picture
    from forebay.bench.provenance import provenance
    from forebay.pages.picture import write_picture
    from forebay.planning.simulate.engine import find_model
    from forebay.planning.simulate.traces import TraceRequest, read_trace

    check_json(json)
    check_plot(plot)
    names, boots, slos = load or list(LOADS), boot or [60.0, 180.0], slo or [10.0, 60.0]
    _check(names, boots, slos, stretch, replicas)
    requests = [
        TraceRequest(one.arrived_s, one.prompt_tokens, one.output_tokens) for one in read_trace(trace)
    ]
    model = WorkModel.fit(requests, find_model(engine))
    found: list[Comparison] = []
    for name in names:
        if name == TRACE:
            case = stretched(trace.stem, requests, model, stretch=stretch, replicas=replicas, seed=seed)
        elif name == DAYS:
            case = days(requests, model, replicas=replicas, seed=seed)
        else:
            times, quiet = BURSTS[name]
            case = bursts(requests, model, times=times, replicas=quiet, seed=seed)
        found += compare_policies(case, boots, slos, note)
    document = {
        "provenance": provenance(command=command_line(), seed=seed, model=model.engine.name),
        "engine": engine,
        "seed": seed,
        "goal": GOAL,
        "comparisons": [one.document() for one in found],
    }
    if plot is not None:
        write_picture(plot, frontiers_picture(found))
    report(json, document, lambda: show_comparisons(found))


def show_comparisons(found: Sequence[Comparison]) -> None:
    """Costs are multiples of the work."""
    rows = []
    for one in found:
        equal = one.at_equal_cost()
        cheapest = [one.cheapest(of_fixed=of_fixed) for of_fixed in (False, True)]
        rows.append(
            (
                one.load,
                f"{one.boot_s:g} s",
                f"{one.slo_s:g} s",
                f"{one.deadline.goodput:.3f}",
                f"{one.deadline.replica_seconds / one.work_s:.2f}",
                f"{one.oracle_seconds / one.work_s:.2f}",
                f"{equal.goodput:.3f} ({equal.policy})" if equal else "none",
                *(f"{p.replica_seconds / one.work_s:.2f} ({p.policy})" if p else "none" for p in cheapest),
            )
        )
    show_table(
        ("load", "boot", "SLO", "goodput", "cost", "oracle", "at equal cost", "99 %: other", "fixed"), rows
    )


def _check(
    names: Sequence[str], boots: Sequence[float], slos: Sequence[float], stretch: float, replicas: float
) -> None:
    for name in names:
        if name not in LOADS:
            raise SettingError(f"--load: expected one of {', '.join(LOADS)}; found {name!r}")
    for option, values, least, most in (
        ("--boot", boots, 0, 7200),
        ("--slo", slos, 5, 3600),
        ("--stretch", [stretch], 0.1, 100),
        ("--replicas", [replicas], 0.5, 50),
    ):
        for value in values:
            if not least <= value <= most:
                raise SettingError(f"{option}: expected {least:g} to {most:g}, found {value:g}")
