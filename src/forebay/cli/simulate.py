"""`forebay simulate`: run requests through a simulated fleet, and calibrate its engines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.options import option
from forebay.cli.output import Command, Group, JsonFile, check_json, check_outputs, print_line, print_report
from forebay.errors import SettingError
from forebay.untrusted_text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.planning.simulate import Figures

MAX_REPLICAS = 1000

FIGURES: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("goodput", lambda one: f"{one.goodput:.3f}"),
    ("TTFT mean", lambda one: f"{one.ttft_mean_s:.3f} s"),
    ("TTFT p99", lambda one: f"{one.ttft_p99_s:.2f} s"),
    ("TPOT mean", lambda one: f"{one.tpot_mean_s * 1000:.0f} ms"),
    ("TPOT p99", lambda one: f"{one.tpot_p99_s * 1000:.0f} ms"),
    ("latency mean", lambda one: f"{one.latency_mean_s:.2f} s"),
    ("latency p99", lambda one: f"{one.latency_p99_s:.1f} s"),
    ("prompt tokens cached", lambda one: f"{one.hit_share:.3f}"),
    ("imbalance", lambda one: f"{one.imbalance:.2f}"),
    ("requests/s", lambda one: f"{one.requests_per_s:.1f}"),
)

simulate = typer.Typer(cls=Group, help="Serve a trace, or generated requests, with simulated replicas.")

Trace = Annotated[Path | None, option("Requests in Mooncake's or Azure's format.")]
Engine = Annotated[str, option("Calibrated engine: llama-8b or qwen-32b.")]
Replicas = Annotated[int, option("Number of replicas.", min=1, max=MAX_REPLICAS)]


@simulate.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    *,
    trace: Trace = None,
    requests: Annotated[int, option("Generated requests, without --trace.", min=1)] = 20_000,
    rate: Annotated[float, option("Generated requests per second.")] = 30.0,
    prompt_tokens: Annotated[float, option("Their mean prompt, without the prefix.")] = 1000.0,
    output_tokens: Annotated[float, option("Their mean answer.")] = 200.0,
    prefixes: Annotated[int, option("Number of prefixes that they share.", min=0)] = 0,
    prefix_tokens: Annotated[int, option("Tokens of each prefix.", min=0)] = 0,
    replicas: Replicas = 8,
    engine: Engine = "llama-8b",
    policy: Annotated[list[str] | None, option("Routing policy; may be repeated.")] = None,
    load: Annotated[float | None, option("Scale arrivals to this share of capacity.")] = None,
    seed: Annotated[int, option("Seed of generated requests and of random policies.")] = 0,
    json: JsonFile = None,
    plot: Annotated[Path | None, option("Plot TTFT and latency to this SVG file.")] = None,
) -> None:
    """Serve the requests once per policy and print the figures. The same seed gives the same figures."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from forebay.fleet.config import DEFAULT_POLICY
    from forebay.pages.picture import check_picture, write_picture
    from forebay.planning.simulate import Scenario, dispatcher_for, runs_picture
    from forebay.planning.simulate.engine import find_model
    from forebay.planning.simulate.traces import PoissonArrivals, read_trace

    check_outputs(json, {"--plot": plot}, {"--trace": trace})
    if plot is not None:
        check_picture(plot)
    policies = policy or [DEFAULT_POLICY]
    for name in policies:
        dispatcher_for(name)
    if load is not None and not 0 < load < 100:
        raise SettingError(f"--load: expected a share of capacity between 0 and 100, found {load:g}")
    made = PoissonArrivals(requests, rate, prompt_tokens, output_tokens, prefixes, prefix_tokens, seed=seed)
    scenario = Scenario(
        (read_trace(trace) if trace else []) or made.make(), find_model(engine), replicas, seed=seed
    )
    scale = 1.0 if load is None else scenario.time_scale(load, scenario.capacity_per_s())
    found: dict[str, Any] = {}
    speeds = {}
    for name in policies:
        began_s = time.perf_counter()
        found[name] = scenario.run(name, scale)
        speeds[name] = len(scenario.trace) / (time.perf_counter() - began_s)
    document = {
        "engine": scenario.model.name,
        "replicas": replicas,
        "seed": seed,
        "slo": asdict(scenario.slo),
        "policies": {
            name: {**asdict(one), "simulated_requests_per_s": speeds[name]} for name, one in found.items()
        },
    }
    if plot is not None:
        lines = {name: (one.ttft_s, one.latency_s) for name, one in found.items()}
        asked, size = counted(len(scenario.trace), "request"), counted(replicas, "replica")
        write_picture(plot, runs_picture(lines, f"{asked}, {size} of {scenario.model.name}"))
    table = Table("figure", *found, box=None)
    for title, show in FIGURES:
        table.add_row(title, *(show(one) for one in found.values()))
    table.add_row("simulated requests/s", *(f"{speed:.0f}" for speed in speeds.values()))
    print_report(json, document, lambda console: console.print(table))


@simulate.command(cls=Command)
def calibrate(
    run: Annotated[Path, typer.Argument(help="Requests served by an engine, one JSON object per line.")],
    *,
    kv_tokens: Annotated[int, option("Tokens in its KV cache.", min=1)] = 500_000,
    max_num_seqs: Annotated[int, option("Setting of the engine.", min=1)] = 128,
    max_num_batched_tokens: Annotated[int, option("Setting of the engine.", min=2)] = 2048,
    json: JsonFile = None,
) -> None:
    """Fit an engine's step times to a measured run. The exit status is 1 if a figure is over 10 % off."""
    from rich.table import Table

    from forebay.planning.simulate.calibrate import calibrate as fit
    from forebay.planning.simulate.calibrate import read_run
    from forebay.planning.simulate.engine import LLAMA_8B

    check_json(json)
    model = replace(
        LLAMA_8B,
        name=run.name.partition(".requests")[0],
        kv_tokens=kv_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    found = fit(read_run(run), model)
    document = {
        "step_time": asdict(found.model.step_time),
        "measured": found.measured,
        "simulated": found.simulated,
        "worst_error": found.worst,
    }

    def show(console: Console) -> None:
        table = Table("figure", "measured", "simulated", "error", box=None)
        for name, measured in found.measured.items():
            off = f"{(found.simulated[name] / measured - 1) * 100:+.1f} %"
            table.add_row(name, f"{measured:.4f}", f"{found.simulated[name]:.4f}", off)
        console.print(table)
        for name, value in asdict(found.model.step_time).items():
            print_line(console, f"{name} = {value:.6g}")

    print_report(json, document, show)
    if found.worst > 0.1:
        raise typer.Exit(1)
