"""`forebay engine up|status|down`: local vLLM replicas."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Column, Table

from forebay.engine.launch import (
    ConsoleProgress,
    EngineOptions,
    Registry,
    Replica,
    end_kept,
    is_healthy,
    local_replicas,
    machine_registry,
    parse_cores,
)
from forebay.errors import SettingError
from forebay.settings import load_settings

engine = typer.Typer(help="Local vLLM replicas.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
DEFAULTS = EngineOptions()


@engine.command(context_settings={"allow_extra_args": True})
def up(
    context: typer.Context,
    *,
    replicas: Annotated[int, typer.Option(help="How many to start.")] = 1,
    model: Annotated[str, typer.Option(help="`default`, a directory, or a hub's OWNER/NAME.")] = "default",
    served_model_name: Annotated[str | None, typer.Option(help="The name that requests use.")] = None,
    port_base: Annotated[int, typer.Option(help="The first port tried.")] = DEFAULTS.port_base,
    cores: Annotated[str | None, typer.Option(help="Cores to share out, such as 0-3,6.")] = None,
    kv_cache_gib: Annotated[float | None, typer.Option(help="KV cache of each replica.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Number type, such as float32; by default the processor's fastest.")
    ] = None,
    max_model_len: Annotated[int, typer.Option(help="Tokens of prompt and answer.")] = DEFAULTS.max_model_len,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences in one batch.")] = DEFAULTS.max_num_seqs,
    eager: Annotated[bool, typer.Option(help="Start fast; without, compile first.")] = DEFAULTS.eager,
    timeout_s: Annotated[float, typer.Option(help="Longest start, in seconds.")] = DEFAULTS.timeout_s,
    json: Json = False,
) -> None:
    """Start replicas and leave them running. Arguments after `--` go to vLLM as they are."""
    settings = load_settings()
    options = EngineOptions(
        model=model,
        served_name=served_model_name,
        dtype=dtype,
        cores=parse_cores(cores) if cores is not None else None,
        port_base=port_base,
        kv_cache_gib=kv_cache_gib,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        eager=eager,
        extra=tuple(context.args),
        timeout_s=timeout_s,
    )
    running = [replica for replica in machine_registry(settings).read() if replica.kept and replica.alive]
    if running:
        raise SettingError(
            f"{len(running)} replicas are running already; `forebay engine status` shows them, "
            "`forebay engine down` ends them"
        )
    progress = ConsoleProgress(Console(stderr=True))
    with local_replicas(replicas, options, settings=settings, progress=progress) as started:
        started.keep()
        _show(started.replicas, json)


@engine.command()
def status(json: Json = False) -> None:
    """Show the registered replicas: whether they run and answer."""
    _show(machine_registry(load_settings()).read(), json)


@engine.command()
def down(json: Json = False) -> None:
    """End the replicas that `up` started, with all their processes."""
    registry: Registry = machine_registry(load_settings())
    ended = end_kept(registry)
    if json:
        _print_json({"ended": [replica.url for replica in ended]})
    else:
        typer.echo(f"{len(ended)} replica(s) ended.")


def _state(replica: Replica) -> str:
    if not replica.alive:
        return "dead"
    return "healthy" if is_healthy(replica) else "not answering"


def _show(replicas: tuple[Replica, ...] | list[Replica], json: bool) -> None:
    rows = [
        {
            "url": replica.url,
            "state": _state(replica),
            "model": replica.model,
            "type": replica.dtype,
            "why": replica.dtype_reason,
            "cores": list(replica.cores),
            "pid": replica.pid,
            "owner": None if replica.kept else replica.owner_pid,
            "log": str(replica.log),
        }
        for replica in replicas
    ]
    if json:
        _print_json({"replicas": rows})
    elif not rows:
        typer.echo("No replicas. `forebay engine up` starts one.")
    else:
        names = ("url", "state", "model", "type", "cores", "pid", "log")
        table = Table(*(Column(name, overflow="fold") for name in names), box=None)
        for row in rows:
            table.add_row(*(str(row[name]) for name in names))
        console = Console()
        console.print(table)
        for name, why in sorted({(replica.dtype, replica.dtype_reason) for replica in replicas}):
            if name and why:
                console.print(f"{name}: {why}", highlight=False, markup=False, soft_wrap=True)


def _print_json(document: object) -> None:
    typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
