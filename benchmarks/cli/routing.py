"""`python -m benchmarks routing` and `overload`: routing and admission in the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from benchmarks.cli.options import Plot, check_plot, report, show_table
from forebay.cli.output import JsonFile, check_json, errors_console, results_console, say
from forebay.errors import SettingError

if TYPE_CHECKING:
    from benchmarks.routing import RoutingReport

Trace = Annotated[Path, typer.Option(help="Requests in Mooncake's or Azure's format.")]
Replicas = Annotated[int, typer.Option(min=1, max=1000, help="How many.")]
Engine = Annotated[str, typer.Option(help="A calibrated engine: llama-8b or qwen-32b.")]
Seed = Annotated[int, typer.Option(help="Seed of random choices.")]


def routing(
    *,
    trace: Annotated[Path | None, typer.Option(help="Requests in Mooncake's or Azure's format.")] = None,
    replicas: Replicas = 8,
    load_sweep: Annotated[
        bool, typer.Option("--load-sweep", help="From idle to 1.3 × capacity, instead of 0.7 and 0.9.")
    ] = False,
    load: Annotated[list[float] | None, typer.Option(help="A share of capacity; may be repeated.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Which to compare; default: all.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="A calibrated engine: llama-8b (default) or qwen-32b. Or, without --trace, URLs of real "
            "engines, to be measured themselves; may be repeated."
        ),
    ] = None,
    seed: Seed = 0,
    json: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Compare routing policies on a trace. Exit status 1 if the default does not beat the others as
    promised."""
    if trace is None:
        _routing_of_engines(engine or [], policy or [], seed, json)
        return
    from benchmarks.picture import routing_picture
    from benchmarks.routing import SWEEP, TWO_LOADS, default_policies, measure_routing
    from forebay.pages.picture import write_picture
    from forebay.planning.simulate import Scenario
    from forebay.planning.simulate.engine import find_model
    from forebay.planning.simulate.traces import read_trace

    check_json(json)
    check_plot(plot)
    if engine and len(engine) > 1:
        raise SettingError("--engine: a trace is served by one kind of engine; give one, or no --trace")
    model = find_model(engine[0] if engine else "llama-8b")
    scenario = Scenario(read_trace(trace), model, replicas, seed=seed)
    loads = tuple(load) if load else SWEEP if load_sweep else TWO_LOADS
    console = errors_console()
    with console.status("reading") as status:
        found = measure_routing(
            scenario, loads, policy or default_policies(), lambda part: status.update(Text(part))
        )
    if plot is not None:
        title = f"{trace.name}, {replicas} replicas of {scenario.model.name}"
        write_picture(plot, routing_picture(found, title))
    report(json, found.document(), lambda: _show(found), passed=found.passed)


def _routing_of_engines(urls: list[str], policies: list[str], seed: int, json: str | None) -> None:
    import asyncio

    from benchmarks.engines import EnginesOptions, measure_engines, passed

    if len(urls) < 2:
        raise SettingError("bench routing: expected --trace FILE, or --engine URL twice or more")
    check_json(json)
    options = EnginesOptions(seed=seed)
    if policies:
        options = replace(options, policies=tuple(policies))
    console = errors_console()
    with console.status("starting") as status:
        found = asyncio.run(measure_engines(urls, options, lambda part: status.update(Text(part))))
    names = ("requests", "ttft_p50_s", "ttft_mean_s", "ttft_p99_s", "requests_per_s", "hit_share")
    rows = [
        (policy, *(None if figures[name] is None else _short(figures[name]) for name in names))
        for policy, figures in found["policies"].items()
    ]
    report(json, found, lambda: show_table(("policy", *names), rows), passed=passed(found))


def overload(
    *,
    trace: Trace,
    replicas: Replicas = 8,
    engine: Engine = "llama-8b",
    seed: Seed = 0,
    json: JsonFile = None,
) -> None:
    """Offer twice the capacity for two minutes, then half, to admission and to other methods."""
    from benchmarks.overload import measure_overload
    from forebay.planning.simulate import Scenario
    from forebay.planning.simulate.engine import find_model
    from forebay.planning.simulate.traces import read_trace

    check_json(json)
    found = measure_overload(Scenario(read_trace(trace), find_model(engine), replicas, seed=seed))
    ways = found["ways"]
    rows = [(name, *(_short(way[name]) for way in ways.values())) for name in ways["admission"]]
    report(json, found, lambda: show_table(("figure", *ways), rows))


def _show(found: RoutingReport) -> None:
    for figure, title in (("goodput", "goodput by load"), ("ttft_mean_s", "mean TTFT (s) by load")):
        show_table(
            ("policy", *(f"{load:g}" for load in found.loads)),
            ((name, *(_short(getattr(one, figure)) for one in own)) for name, own in found.policies.items()),
            title,
        )
    say(
        results_console(),
        f"capacity {found.capacity_per_s:.2f} requests/s; a decision takes "
        + ", ".join(f"{cost:.0f} µs at {count} replicas" for count, cost in found.decision_us.items()),
    )


def _short(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"
