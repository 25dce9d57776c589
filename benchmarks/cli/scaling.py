"""Commands that measure scaling: policies in a simulator, pods."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from benchmarks.cli import common
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
    json: JsonFile = None,
    plot: common.Plot = None,
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

    common.check_report_files(json, plot)
    times = restarts if restarts is not None else QUICK_RESTARTS if quick else 100
    console = errors_console()
    with (
        tempfile.TemporaryDirectory(prefix="forebay-kubernetes-") as folder,
        console.status("the control plane starts") as status,
    ):
        found = measure_kubernetes(Path(folder), real=not quick, restarts=times, note=status.update)
    origin = common.provenance(model="scripted" if quick else DEFAULT_MODEL, seed=1)
    if plot is not None:
        what = "scripted replicas" if quick else "vLLM"
        title = f"{found['burst']['events']} events, {what} in pods"
        write_picture(plot, course_picture(found["burst"]["course"], title))
    document, passed = {"provenance": origin, **found}, all(part["passed"] for part in found.values())
    common.report(json, document, lambda: show_kubernetes(found), passed=passed)


def show_kubernetes(found: dict[str, Any]) -> None:
    from benchmarks.evaluation.autoscale import burst_table, known_table, restarts_table

    common.show_table(*burst_table(found["burst"]))
    common.show_table(*known_table(found["burst"]))
    if "restarts" in found:
        common.show_table(*restarts_table(found["restarts"]))


TRACE, DAYS = "trace", "days"
BURSTS = {"bursts-3x": (3.0, 3.0), "bursts-10x": (10.0, 2.0)}
"""Multiple of the rate, and busy replicas between bursts."""
LOADS = (TRACE, DAYS, *BURSTS)
STRETCH = 4.0
REPLICAS = 6.0
"""That trace and days keep busy on average."""


def autoscale(
    *,
    trace: common.Trace,
    load: Annotated[
        list[str] | None, option(f"One of {', '.join(LOADS)}; may be repeated; default: all.")
    ] = None,
    engine: common.CalibratedEngine = "llama-8b",
    boot: Annotated[
        list[float] | None, option("Boot time in seconds; may be repeated; default: 60 and 180.")
    ] = None,
    slo: Annotated[
        list[float] | None,
        option("Maximum wait of a request in seconds; may be repeated; default: 10 and 60."),
    ] = None,
    seed: common.Seed = 0,
    plot: common.Plot = None,
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

    common.check_report_files(json, plot)
    names, boots, slos = load or list(LOADS), boot or [60.0, 180.0], slo or [10.0, 60.0]
    _check_autoscale(names, boots, slos)
    requests = [
        TraceRequest(one.arrived_s, one.prompt_tokens, one.output_tokens) for one in read_trace(trace)
    ]
    model = WorkModel.fit(requests, find_model(engine))
    found: list[Comparison] = []
    for name in names:
        if name == TRACE:
            case = stretched(trace.stem, requests, model, stretch=STRETCH, replicas=REPLICAS, seed=seed)
        elif name == DAYS:
            case = days(requests, model, replicas=REPLICAS, seed=seed)
        else:
            times, quiet = BURSTS[name]
            case = bursts(requests, model, times=times, replicas=quiet, seed=seed)
        found += compare_policies(case, boots, slos, common.note)
    document: dict[str, Any] = {
        "provenance": common.provenance(seed=seed, model=model.engine.name),
        "engine": engine,
        "seed": seed,
        "goal": GOAL,
        "comparisons": [one.document() for one in found],
    }
    if plot is not None:
        write_picture(plot, frontiers_picture(found))
    common.report(json, document, lambda: common.show_table(*policies_table(document["comparisons"])))


def _check_autoscale(names: Sequence[str], boots: Sequence[float], slos: Sequence[float]) -> None:
    common.check_known("--load", names, LOADS)
    for given, values, least, most in (("--boot", boots, 0, 7200), ("--slo", slos, 5, 3600)):
        for value in values:
            if not least <= value <= most:
                raise SettingError(f"{given}: expected {least:g} to {most:g}, found {value:g}")
