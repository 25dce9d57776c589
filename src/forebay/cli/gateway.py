"""`forebay gateway`: an OpenAI-compatible front for a fleet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from forebay.cli.options import option
from forebay.cli.output import JsonFile, check_json, log_to_stderr, print_report, say
from forebay.errors import SetupError

PACKAGES = frozenset(("uvicorn", "httptools", "prometheus_client"))


def gateway(
    *,
    engine: Annotated[list[str] | None, option("URL of a replica; may be repeated.")] = None,
    prefill: Annotated[
        list[str] | None, option("URL of a server that prefills prompts; may be repeated.")
    ] = None,
    config: Annotated[Path | None, option("Settings of the gateway (YAML).")] = None,
    host: Annotated[str, option("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("Port; 0 picks a free one.", min=0, max=65535)] = 8080,
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
    log_to_stderr()

    def announce(url: str) -> None:
        print_report(json, {"url": url}, lambda console: say(console, f"gateway at {url}"))

    run_gateway(spec, host=host, port=port, announce=announce, load=load, path=config)
