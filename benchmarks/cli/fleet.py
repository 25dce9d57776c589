"""Commands that measure a fleet: routing, admission, Ray Serve."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from benchmarks.cli import common
from forebay.cli.options import option
from forebay.cli.output import (
    STDOUT,
    JsonFile,
    errors_console,
    print_line,
    results_console,
    shows_text,
    write_json,
)
from forebay.errors import SettingError, SetupError
from forebay.settings import load_settings

if TYPE_CHECKING:
    from benchmarks.routing import RoutingReport


Replicas = Annotated[int, option("How many.", min=1, max=1000)]


def routing(
    *,
    trace: common.Trace | None = None,
    replicas: Replicas = 8,
    load_sweep: Annotated[
        bool, option("From idle to 1.3 × capacity, instead of 0.7 and 0.9.", "--load-sweep")
    ] = False,
    load: Annotated[list[float] | None, option("A share of capacity; may be repeated.")] = None,
    policy: Annotated[list[str] | None, option("Which to compare; default: all.")] = None,
    engine: Annotated[
        list[str] | None,
        option(
            "A calibrated engine: llama-8b (default) or qwen-32b. Or, without --trace, URLs of real "
            "engines, to be measured themselves; may be repeated."
        ),
    ] = None,
    seed: common.Seed = 0,
    json: JsonFile = None,
    plot: common.Plot = None,
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

    common.check_report_files(json, plot)
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
    common.report(json, found.document(), lambda: _show_routing(found), passed=found.passed)


def _routing_of_engines(urls: list[str], policies: list[str], seed: int, json: str | None) -> None:
    from benchmarks.routing import EnginesOptions, measure_engines, passed

    if len(urls) < 2:
        raise SettingError("bench routing: expected --trace FILE, or --engine URL twice or more")
    common.check_report_files(json)
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
    common.report(json, found, lambda: common.show_table(("policy", *names), rows), passed=passed(found))


def overload(
    *,
    trace: common.Trace,
    replicas: Replicas = 8,
    engine: common.CalibratedEngine = "llama-8b",
    seed: common.Seed = 0,
    json: JsonFile = None,
) -> None:
    """Offer twice the capacity for two minutes, then half, to admission and to other methods."""
    from benchmarks.overload import measure_overload
    from forebay.planning.simulate import Scenario
    from forebay.planning.simulate.engine import find_model
    from forebay.planning.simulate.traces import read_trace

    common.check_report_files(json)
    found = measure_overload(Scenario(read_trace(trace), find_model(engine), replicas, seed=seed))
    ways = found["ways"]
    rows = [(name, *(_short(way[name]) for way in ways.values())) for name in ways["admission"]]
    common.report(json, found, lambda: common.show_table(("figure", *ways), rows))


def _show_routing(found: RoutingReport) -> None:
    for figure, title in (("goodput", "goodput by load"), ("ttft_mean_s", "mean TTFT (s) by load")):
        common.show_table(
            ("policy", *(f"{load:g}" for load in found.loads)),
            ((name, *(_short(getattr(one, figure)) for one in own)) for name, own in found.policies.items()),
            title,
        )
    print_line(
        results_console(),
        f"capacity {found.capacity_per_s:.2f} requests/s; a decision takes "
        + ", ".join(f"{cost:.0f} µs at {count} replicas" for count, cost in found.decision_us.items()),
    )


def _short(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def ray(*, quick: common.Quick = False, json: JsonFile = None) -> None:
    """Compare our gateway, Serve with our router, and both in turn, on four scripted replicas of a local Ray.

    Prompts share prefixes. Then kills a replica, and disconnects clients. Takes six minutes. Exit status 1 if
    a target is missed.
    """
    from benchmarks.ray_fleet.cluster import find_ray
    from benchmarks.ray_fleet.measure import RayOptions, measure_ray

    common.check_report_files(json)
    program = find_ray()
    if program is None:
        raise SetupError("Ray is missing: make ray")
    options = RayOptions(rounds=1) if quick else RayOptions()
    found = measure_ray(options, program, common.note)
    origin = common.provenance(model="scripted", seed=options.load.seed)
    passed = all(found["passed"].values())
    common.report(json, {"provenance": origin, **found}, lambda: _show_ray(found), passed=passed)


def _show_ray(found: dict[str, Any]) -> None:
    from benchmarks.evaluation import routing

    for table in (routing.ways_table, routing.targets_table, routing.kills_table):
        common.show_table(*table(found))


def slowdown(
    *,
    replica: Annotated[
        list[str] | None,
        option(
            "How the scripted replica answers: streaming, whole, long, long whole, shared or shared whole; "
            "may be repeated. Default: streaming, whole."
        ),
    ] = None,
    quick: common.Quick = False,
    json: JsonFile = None,
) -> None:
    """Run a pipeline on an engine at speed 1, 1/10, 1/50 and back. Exit status 1 if too few events are
    answered."""
    from benchmarks.slowdown import REPLICAS, SlowdownOptions, measure_slowdown

    common.check_report_files(json)
    common.check_known("--replica", replica, REPLICAS)
    runs: list[dict[str, Any]] = []
    for kind in replica or ("streaming", "whole"):
        step_s = 40.0 if quick else 120.0
        with tempfile.TemporaryDirectory(prefix="forebay-slowdown-") as folder:
            run = measure_slowdown(
                SlowdownOptions(replica=kind, step_s=step_s), Path(folder), load_settings(), common.note
            )
        runs.append(run)
        if json is not None and json != STDOUT:
            # Keep what was measured so far, in case a later run fails.
            write_json(json, {"runs": runs})
        if shows_text(json):
            _show_slowdown(run)
    if json == STDOUT:
        write_json(json, {"runs": runs})
    if not all(run["passed"] for run in runs):
        raise typer.Exit(1)


def _show_slowdown(run: dict[str, Any]) -> None:
    names = ("calls", "thrown_away", "retries", "held_mean", "held_max")
    common.show_table(
        ("speed", "goodput", "answers/s", *(name.replace("_", " ") for name in names)),
        (
            (
                f"{step['speed']:g}",
                *(f"{step[name]:.2f}" for name in ("goodput", "answers_per_s")),
                *(step[name] for name in names),
            )
            for step in run["steps"]
        ),
        run["replica"],
    )
    letters = ", ".join(f"{count} {cause}" for cause, count in run["dead_letters"].items()) or "none"
    print_line(
        results_console(),
        f"{run['results']} results, {run['doubled']} twice; dead letters: {letters}; thrown away "
        f"{run['thrown_away']} of {run['calls']} calls ({100 * run['thrown_away_share']:.1f} %)",
    )
