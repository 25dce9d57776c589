"""`forebay gateway`: an OpenAI-compatible front for a fleet."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.output import JsonFile, check_json, shows_text, write_json
from forebay.errors import SetupError
from forebay.untrusted_text import PlainFormatter

PACKAGES = frozenset(("uvicorn", "httptools", "prometheus_client", "opentelemetry"))


def gateway(
    *,
    engine: Annotated[list[str] | None, typer.Option(help="URL of a replica; may be repeated.")] = None,
    prefill: Annotated[
        list[str] | None,
        typer.Option(help="URL of a server that prefills prompts for replicas; may be repeated."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings of the gateway (YAML).")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8080,
    json: JsonFile = None,
) -> None:
    """Serve OpenAI's API with a fleet of replicas, until Ctrl-C or SIGTERM. Drains before it stops.

    The report of --json is the gateway's URL, written as soon as it listens.
    """
    check_json(json)
    try:
        from forebay.gateway.serve import run_gateway
        from forebay.gateway.spec import load_gateway
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise SetupError(
            f"the gateway needs {error.name}, which is not installed; pip install 'forebay[gateway]'"
        ) from None
    load = partial(load_gateway, config, tuple(engine or ()), tuple(prefill or ()))
    spec = load()
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])

    def announce(url: str) -> None:
        write_json(json, {"url": url})
        if shows_text(json):
            typer.echo(f"gateway at {url}")

    run_gateway(spec, host=host, port=port, announce=announce, load=load, path=config)
