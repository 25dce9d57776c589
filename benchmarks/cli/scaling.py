"""Commands that measure scaling: policies in a simulator, pods."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from benchmarks.cli.options import (
    CalibratedEngine,
    Plot,
    Seed,
    Trace,
    check_known,
    check_report_files,
    note,
    provenance,
    report,
    show_table,
)
from forebay.cli.options import option
from forebay.cli.output import JsonFile, errors_console
from forebay.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.autoscale.measure import Comparison


QUICK_RESTARTS = 5


def kubernetes(
    *,
    quick: Annotated[bool, option("Scripted replicas instead of vLLM, and few restarts.", "--quick")] = False,
    restarts: Annotated[
        int | None, option("Restarts of the API server; 100, or few if quick.", min=0, max=10_000)
    ] = None,
    rate: Annotated[
        float | None,
        option(
            "Events per second without the burst: less than one replica can do; 0.5, or 3 if quick.",
            min=0.01,
            max=100,
        ),
    ] = None,
    slo: Annotated[
        float | None,
        option(
            "Seconds that an event may wait: more than a boot, or a replica is kept for the next burst; 60,"
            " or 8 if quick.",
            min=1,
            max=3600,
        ),
    ] = None,
    json: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Let a burst scale a Deployment of vLLM from one replica to two and back, and restart the API server
    repeatedly.

    Pods are processes of this machine. Takes minutes. Exit status 1 if an event was lost, doubled or cut off,
    a number was wrong or something took too long.
    """
    from benchmarks.kubernetes.measure import measure_kubernetes
    from forebay.engine.launch.environment import DEFAULT_MODEL
    from forebay.pages.picture import write_picture
    from forebay.pipeline.scaling_record import course_picture

    check_report_files(json, plot)
    times = restarts if restarts is not None else QUICK_RESTARTS if quick else 100
    console = errors_console()
    with (
        tempfile.TemporaryDirectory(prefix="forebay-kubernetes-") as folder,
        console.status("the control plane starts") as status,
    ):
        found = measure_kubernetes(
            Path(folder), real=not quick, restarts=times, rate_per_s=rate, slo_s=slo, say=status.update
        )
    origin = provenance(model="scripted" if quick else DEFAULT_MODEL, seed=1)
    if plot is not None:
        what = "scripted replicas" if quick else "vLLM"
        title = f"{found['burst']['events']} events, {what} in pods"
        write_picture(plot, course_picture(found["burst"]["course"], title))
    document, passed = {"provenance": origin, **found}, all(part["passed"] for part in found.values())
    report(json, document, lambda: show_kubernetes(found), passed=passed)


def show_kubernetes(found: dict[str, Any]) -> None:
    from benchmarks.evaluation.autoscale import burst_table, known_table, restarts_table

    show_table(*burst_table(found["burst"]))
    show_table(*known_table(found["burst"]))
    if "restarts" in found:
        show_table(*restarts_table(found["restarts"]))


TRACE, DAYS = "trace", "days"
BURSTS = {"bursts-3x": (3.0, 3.0), "bursts-10x": (10.0, 2.0)}
"""Multiple of the rate, and busy replicas between bursts."""
LOADS = (TRACE, DAYS, *BURSTS)


def autoscale(
    *,
    trace: Trace,
    load: Annotated[
        list[str] | None, option(f"One of {', '.join(LOADS)}; may be repeated; default: all.")
    ] = None,
    engine: CalibratedEngine = "llama-8b",
    boot: Annotated[
        list[float] | None, option("Boot time in seconds; may be repeated; default: 60 and 180.")
    ] = None,
    slo: Annotated[
        list[float] | None,
        option("Maximum wait of a request in seconds; may be repeated; default: 10 and 60."),
    ] = None,
    stretch: Annotated[float, option("Stretch the trace by this factor.")] = 4.0,
    replicas: Annotated[float, option("Replicas that trace and days keep busy on average.")] = 6.0,
    seed: Seed = 0,
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
    from benchmarks.evaluation.autoscale import policies_table
    from forebay.pages.picture import write_picture
    from forebay.planning.simulate.engine import find_model
    from forebay.planning.simulate.traces import TraceRequest, read_trace

    check_report_files(json, plot)
    names, boots, slos = load or list(LOADS), boot or [60.0, 180.0], slo or [10.0, 60.0]
    _check_autoscale(names, boots, slos, stretch, replicas)
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
    document: dict[str, Any] = {
        "provenance": provenance(seed=seed, model=model.engine.name),
        "engine": engine,
        "seed": seed,
        "goal": GOAL,
        "comparisons": [one.document() for one in found],
    }
    if plot is not None:
        write_picture(plot, frontiers_picture(found))
    report(json, document, lambda: show_table(*policies_table(document["comparisons"])))


def _check_autoscale(
    names: Sequence[str], boots: Sequence[float], slos: Sequence[float], stretch: float, replicas: float
) -> None:
    check_known("--load", names, LOADS)
    for given, values, least, most in (
        ("--boot", boots, 0, 7200),
        ("--slo", slos, 5, 3600),
        ("--stretch", [stretch], 0.1, 100),
        ("--replicas", [replicas], 0.5, 50),
    ):
        for value in values:
            if not least <= value <= most:
                raise SettingError(f"{given}: expected {least:g} to {most:g}, found {value:g}")
