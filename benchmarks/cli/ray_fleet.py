"""`python -m benchmarks ray`: the fleet on Ray Serve against our own gateway, under the same load."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks.cli.options import command_line
from forebay.cli.output import (
    JsonFile,
    check_json,
    errors_console,
    results_console,
    say,
    shows_text,
    write_json,
)
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
    console = errors_console()
    found = measure_ray(options, ray, lambda part: say(console, part))
    origin = provenance(command=command_line(), model="scripted", seed=options.load.seed)
    write_json(json, {"provenance": origin, **found})
    if shows_text(json):
        _show(found)
    if not all(found["passed"].values()):
        raise typer.Exit(1)


def _show(found: dict[str, Any]) -> None:
    table = Table("way", "hit share", "goodput", "TTFT p50 ms", "p99 ms", "failed", box=None)
    for way, one in found["ways"].items():
        p99 = one["ttft_ms_p99"]
        table.add_row(
            way,
            f"{one['hit_share']:.3f}",
            f"{one['goodput']:.3f}",
            f"{one['ttft_ms_p50']:.1f}",
            "–" if p99 is None else f"{p99:.1f}",
            str(one["failed"]),
        )
    console = results_console()
    console.print(table)
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
