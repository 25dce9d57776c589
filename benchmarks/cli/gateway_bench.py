"""`python -m benchmarks gateway`: what the gateway adds to the time to first token."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from forebay.cli.files import check_writable


def gateway_bench(
    *,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second.")] = 100.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds each way.")] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="Length of a round.")] = 6.0,
    hostile: Annotated[
        bool, typer.Option("--hostile", help="Compare with and without a client that attacks the gateway.")
    ] = False,
    json: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Compare TTFT with and without the gateway, in turn; status 1 where it adds more than promised."""
    from benchmarks.gateway import GatewayOptions, measure_gateway
    from benchmarks.hostile import measure_hostile

    if json is not None:
        check_writable("--json", json)
    console = Console(stderr=True)
    measure = measure_hostile if hostile else measure_gateway
    found = measure(
        GatewayOptions(rate_per_s=rate, rounds=rounds, seconds=seconds),
        lambda part: console.print(part, highlight=False),
    )
    if json is not None:
        json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
    if hostile:
        table = Table("turn", "latency p50 ms", "p99 ms", box=None)
        for turn in ("alone", "attacked"):
            table.add_row(turn, *(f"{found[f'{turn}_ms_{q}']:.2f}" for q in ("p50", "p99")))
        Console().print(table, f"the attack adds {found['added_p99']:.1%} to the 99th percentile")
        if not found["passed"]:
            raise typer.Exit(1)
        return
    table = Table("way", "TTFT p50 ms", "p99 ms", "latency p50 ms", "p99 ms", box=None)
    for way in ("direct", "gateway", "added"):
        figures = (found[f"{way}_{name}_{q}"] for name in ("ttft_ms", "latency_ms") for q in ("p50", "p99"))
        table.add_row(way, *(f"{figure:.2f}" for figure in figures))
    Console().print(table)
    if not found["passed"]:
        raise typer.Exit(1)
