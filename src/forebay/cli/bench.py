"""`forebay bench`: what your own engine and machine can do."""

from __future__ import annotations

import typer

from forebay.cli.engine_settings import engine_settings
from forebay.cli.json_option import Command

bench = typer.Typer(help="Measure an engine on this machine.", no_args_is_help=True)
bench.command(name="engine", cls=Command)(engine_settings)


@bench.callback()
def _bench() -> None:
    """Measure an engine on this machine."""
