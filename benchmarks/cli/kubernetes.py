"""`python -m benchmarks kubernetes`: replicas that follow a burst on a real Kubernetes control plane."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cli.options import Plot, check_plot, command_line, report
from forebay.cli.output import JsonFile, check_json, errors_console, results_console, say

QUICK_RESTARTS = 5


def kubernetes(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Scripted replicas, and few restarts.")] = False,
    restarts: Annotated[
        int | None, typer.Option(min=0, max=10_000, help="Restarts of the API server; 100, or few if quick.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=100,
            help="Events per second without the burst: less than one replica can do; 0.5, or 3 if quick.",
        ),
    ] = None,
    slo: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=3600,
            help="Seconds that an event may wait: more than a boot, or a replica is kept for the next burst; "
            "60, or 8 if quick.",
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
    from forebay.bench.provenance import provenance
    from forebay.engine.launch.environment import DEFAULT_MODEL
    from forebay.pages.picture import write_picture
    from forebay.pipeline.scaling.picture import course_picture

    check_json(json)
    check_plot(plot)
    times = restarts if restarts is not None else QUICK_RESTARTS if quick else 100
    console = errors_console()
    with (
        tempfile.TemporaryDirectory(prefix="forebay-kubernetes-") as folder,
        console.status("the control plane starts") as status,
    ):
        found = measure_kubernetes(
            Path(folder), real=not quick, restarts=times, rate_per_s=rate, slo_s=slo, say=status.update
        )
    origin = provenance(command=command_line(), model="scripted" if quick else DEFAULT_MODEL, seed=1)
    if plot is not None:
        what = "scripted replicas" if quick else "vLLM"
        title = f"{found['burst']['events']} events, {what} in pods"
        write_picture(plot, course_picture(found["burst"]["course"], title))
    document, passed = {"provenance": origin, **found}, all(part["passed"] for part in found.values())
    report(json, document, lambda: say(results_console(), words(found)), passed=passed)


def words(found: dict[str, Any]) -> str:
    burst, drill = found["burst"], found.get("restarts")
    scaled = ", ".join(f"{seconds:.1f} s" for seconds in burst["scaled_up_s"])
    known = ", ".join(f"{seconds:.2f} s" for seconds in burst["known_s"])
    routed = ", ".join(f"{seconds:.1f} s" for seconds in burst["routed_s"])
    lines = [
        f"{burst['answered']} of {burst['events']} events answered, {burst['lost']} lost, {burst['doubled']} "
        f"doubled, {burst['cut_off']} cut off; ready replicas {' → '.join(map(str, burst['levels']))}; "
        f"signal to scale {scaled}; ready to known by the router {known}, to the first request {routed}; "
        f"{burst['at_stop']:.0f} requests in the replica that was taken away, {burst['sent_late']:.0f} sent "
        f"to it afterwards"
    ]
    if drill is not None:
        lines.append(
            f"{drill['restarts']} restarts of the API server: {len(drill['wrong'])} wrong numbers, "
            f"{drill['held']} times requests in flight kept replicas, "
            f"{drill['conflicts']} conflicts, {drill['expired']} expired watches, {drill['strayed']} lists "
            f"of replicas that stayed wrong; to the scale {drill['median_s']} s, at most {drill['most_s']} s"
        )
    return "\n".join(lines)
