"""`forebay bench gateway`: what the gateway adds to the time to first token."""

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
    json: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Compare TTFT with and without the gateway, in turn; status 1 where it adds more than promised."""
    from forebay.bench.gateway import GatewayOptions, measure_gateway

    if json is not None:
        check_writable("--json", json)
    console = Console(stderr=True)
    found = measure_gateway(
        GatewayOptions(rate_per_s=rate, rounds=rounds, seconds=seconds),
        lambda part: console.print(part, highlight=False),
    )
    if json is not None:
        json.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2) + b"\n")
    table = Table("way", "TTFT p50 ms", "p99 ms", "latency p50 ms", "p99 ms", box=None)
    for way in ("direct", "gateway", "added"):
        figures = (found[f"{way}_{name}_{q}"] for name in ("ttft_ms", "latency_ms") for q in ("p50", "p99"))
        table.add_row(way, *(f"{figure:.2f}" for figure in figures))
    Console().print(table)
    if not found["passed"]:
        raise typer.Exit(1)
