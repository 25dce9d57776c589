"""`python -m benchmarks ray`: the fleet on Ray Serve against our own gateway, under the same load."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarks.cli.options import command_line, digits, note, report, show_table
from forebay.cli.output import JsonFile, check_json, results_console, say
from forebay.errors import SetupError


def ray_fleet(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="One round each way.")] = False,
    json: JsonFile = None,
) -> None:
    """Compare our gateway, Serve with our router, and both in turn, on four scripted replicas of a local Ray.

    Prompts share prefixes. Then kills a replica, and disconnects clients. Takes six minutes. Exit status 1 if
    a target is missed.
    """
    from benchmarks.ray_fleet.cluster import find_ray
    from benchmarks.ray_fleet.measure import RayOptions, measure_ray
    from forebay.bench.provenance import provenance

    check_json(json)
    ray = find_ray()
    if ray is None:
        raise SetupError("Ray is missing: make ray")
    options = RayOptions(rounds=1) if quick else RayOptions()
    found = measure_ray(options, ray, note)
    origin = provenance(command=command_line(), model="scripted", seed=options.load.seed)
    passed = all(found["passed"].values())
    report(json, {"provenance": origin, **found}, lambda: _show(found), passed=passed)


def _show(found: dict[str, Any]) -> None:
    columns = {
        "hit share": ("hit_share", ".3f"),
        "goodput": ("goodput", ".3f"),
        "TTFT p50 ms": ("ttft_ms_p50", ".1f"),
        "p99 ms": ("ttft_ms_p99", ".1f"),
    }
    show_table(
        ("way", *columns, "failed"),
        (
            (way, *(digits(one[name], form) for name, form in columns.values()), one["failed"])
            for way, one in found["ways"].items()
        ),
    )
    console = results_console()
    for client, one in found["killed"].items():
        say(
            console,
            f"a kill, {client}: {one['in_flight']} requests were there, {one['lost']} of {one['requests']} "
            f"lost, four replicas again after {one['replaced_s']:.1f} s",
        )
    left = found["hung_up"]
    say(console, f"{left['aborted']} of {left['requests']} requests aborted whose clients hung up")
    missed = [name for name, passed in found["passed"].items() if not passed]
    say(console, f"missed: {', '.join(missed)}" if missed else "no target missed")
