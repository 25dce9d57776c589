"""`forebay engine up|status|down`: local vLLM replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.options import option
from forebay.cli.output import (
    Command,
    JsonFile,
    check_json,
    errors_console,
    folded_table,
    print_line,
    print_report,
)
from forebay.errors import SettingError
from forebay.settings import load_settings
from forebay.untrusted_text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.engine.launch import LocalReplica

MAX_PORTS = 10

engine = typer.Typer(help="Local vLLM replicas.", no_args_is_help=True)


@engine.command(cls=Command, context_settings={"allow_extra_args": True})
def up(
    context: typer.Context,
    *,
    replicas: Annotated[int, option("Number of replicas to start.")] = 1,
    model: Annotated[
        str, option("`default`, a directory, a hub's OWNER/NAME, or random weights, such as random:opt-125m.")
    ] = "default",
    served_model_name: Annotated[str | None, option("Model name for requests.")] = None,
    port_base: Annotated[int, option("First port to try.")] = 8100,
    cores: Annotated[str | None, option("Cores to divide among the replicas, such as 0-3,6.")] = None,
    kv_cache_gib: Annotated[float | None, option("KV cache of each replica, in GiB.")] = None,
    dtype: Annotated[
        str | None, option("Number type, such as float32; default: the processor's fastest.")
    ] = None,
    max_model_len: Annotated[
        int | None,
        option("Maximum tokens of prompt and answer; default: 8192, or the model's context if shorter."),
    ] = None,
    max_num_seqs: Annotated[int, option("Maximum sequences in one batch.")] = 128,
    eager: Annotated[bool, option("Start fast, without compiling first.")] = True,
    timeout_s: Annotated[float, option("Maximum time to start, in seconds.")] = 600.0,
    json: JsonFile = None,
) -> None:
    """Start replicas and leave them running. Arguments after `--` are passed to vLLM."""
    from forebay.engine.launch import ConsoleProgress, EngineOptions, local_replicas, parse_cores
    from forebay.engine.launch import machine_registry as registry_of

    check_json(json)
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
    running = [replica for replica in registry_of(settings).read() if replica.kept and replica.alive]
    if running:
        raise SettingError(
            f"{counted(len(running), 'replica is', 'replicas are')} already running; list them with `forebay "
            "engine status`, stop them with `forebay engine down`"
        )
    progress = ConsoleProgress(errors_console())
    with local_replicas(replicas, options, settings=settings, progress=progress) as started:
        started.keep()
        taken = taken_ports([replica.port for replica in started.replicas], port_base)
        if taken:
            print_line(errors_console(), taken)
        _show(started.replicas, json)


def taken_ports(found: Sequence[int], base: int) -> str:
    taken = sorted({*range(base, max(found))} - {*found})
    if not taken:
        return ""
    ports = ", ".join(map(str, taken[:MAX_PORTS])) + (", …" if len(taken) > MAX_PORTS else "")
    return f"in use: {ports}; using the next free ports: {', '.join(map(str, found))}"


@engine.command(cls=Command)
def status(*, json: JsonFile = None) -> None:
    """Show the registered replicas and whether they respond."""
    from forebay.engine.launch import machine_registry

    check_json(json)
    _show(machine_registry(load_settings()).read(), json)


@engine.command(cls=Command)
def down(
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="[URL]...", help="Replicas to stop; default: all.")
    ] = None,
    *,
    json: JsonFile = None,
) -> None:
    """Stop the replicas that `up` started, with all their processes."""
    from forebay.engine.launch import end_kept, machine_registry

    check_json(json)
    registry = machine_registry(load_settings())
    wanted = {url.rstrip("/") for url in urls or ()}
    there = {replica.url for replica in registry.read() if replica.kept}
    if wanted - there:
        raise SettingError(
            f"forebay engine down: `up` did not start a replica {min(wanted - there)[:200]!r}; "
            f"found: {', '.join(sorted(there)) or 'none'}"
        )
    ended = end_kept(registry, only=wanted or there)
    document = {"ended": [replica.url for replica in ended]}
    print_report(
        json, document, lambda console: print_line(console, f"{counted(len(ended), 'replica')} stopped")
    )


def _show(replicas: Sequence[LocalReplica], json: str | None) -> None:
    from forebay.engine.launch import is_healthy

    rows: list[dict[str, Any]] = [
        {
            "url": replica.url,
            "state": "dead" if not replica.alive else "healthy" if is_healthy(replica) else "not answering",
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

    def show(console: Console) -> None:
        if not rows:
            print_line(console, "No replicas. `forebay engine up` starts one.")
            return
        console.print(folded_table(("url", "state", "model", "type", "cores", "pid", "log"), rows))
        for name, why in sorted({(replica.dtype, replica.dtype_reason) for replica in replicas}):
            if name and why:
                print_line(console, f"{name}: {why}")

    print_report(json, {"replicas": rows}, show)
