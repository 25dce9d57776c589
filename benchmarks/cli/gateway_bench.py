"""`python -m benchmarks gateway`: what the gateway adds to the time to first token."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from benchmarks.cli.options import note, report, show_table
from forebay.cli.output import JsonFile, check_json, results_console, say
from forebay.errors import SettingError


def gateway_bench(
    *,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second.")] = 100.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds each way.")] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="Length of a round.")] = 6.0,
    hostile: Annotated[
        bool, typer.Option("--hostile", help="Instead: compare with and without a hostile client.")
    ] = False,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="With --hostile: one way to be hostile; may be repeated. Default: all."),
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(min=1, help="Instead: this many users at once, on a gateway that has just started."),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="With --users: URL of a real engine.")] = None,
    model: Annotated[str, typer.Option(help="With --engine: its model.")] = "fake",
    kv_tokens: Annotated[
        int,
        typer.Option(min=0, help="With --users: KV cache that the scripted engine reports, as vLLM does."),
    ] = 0,
    json: JsonFile = None,
) -> None:
    """Compare TTFT with and without the gateway, in turn. Exit status 1 if it adds more than promised."""
    from benchmarks.gateway import GatewayOptions, measure_gateway
    from benchmarks.hostile import measure_hostile
    from benchmarks.hostile_client import WAYS
    from benchmarks.users import UsersOptions, measure_users

    check_json(json)
    if unknown := set(attack or ()) - set(WAYS):
        raise SettingError(f"--attack: expected one of {', '.join(WAYS)}, found {sorted(unknown)[0]!r}")
    options = GatewayOptions(rate_per_s=rate, rounds=rounds, seconds=seconds)
    if users is not None:
        found = measure_users(
            UsersOptions(users=users, rounds=rounds, url=engine, model=model, kv_tokens=kv_tokens), note
        )
    elif hostile:
        found = measure_hostile(options, note, ways=attack or tuple(WAYS))
    else:
        found = measure_gateway(options, note)
    show = _show_users if users is not None else _show_hostile if hostile else _show
    report(json, found, lambda: show(found), passed=found["passed"])


def _show_users(found: dict[str, Any]) -> None:
    show_table(
        ("way", "answers", "refused", "first token p50 s", "p99 s", "answer p50 s", "p99 s"),
        (
            (
                way,
                *(found[f"{way}_{name}"] for name in ("answers", "refused")),
                *(
                    f"{found[f'{way}_{name}_{q}'] / 1000:.2f}"
                    for name in ("first_ms", "whole_ms")
                    for q in ("p50", "p99")
                ),
            )
            for way in ("direct", "gateway")
        ),
    )
    say(results_console(), f"first token p50: {found['ratio']:.2f} times that of the engine alone")


def _show_hostile(found: dict[str, Any]) -> None:
    show_table(
        ("hostile client", "p50 ms", "attacked", "ratio", "p99 ms", "attacked", "ratio", "lost"),
        (
            (
                way,
                *(
                    f"{figures[name]:.{places}f}"
                    for q in ("p50", "p99")
                    for name, places in ((f"alone_ms_{q}", 1), (f"attacked_ms_{q}", 1), (f"{q}_ratio", 2))
                ),
                f"{figures['lost']} of {figures['requests']}",
            )
            for way, figures in found["ways"].items()
        ),
    )


def _show(found: dict[str, Any]) -> None:
    show_table(
        ("way", "TTFT p50 ms", "p99 ms", "latency p50 ms", "p99 ms"),
        (
            (
                way,
                *(
                    f"{found[f'{way}_{name}_{q}']:.2f}"
                    for name in ("ttft_ms", "latency_ms")
                    for q in ("p50", "p99")
                ),
            )
            for way in ("direct", "gateway", "added")
        ),
    )
