"""`forebay setup`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from forebay.embed.model import ensure_embedding_model
from forebay.engine.launch import ConsoleProgress, best_type, ensure_engine
from forebay.engine.launch.environment import environment_ready
from forebay.settings import Settings, load_settings

INSTALLS = (
    "The engine is installed first, once: vLLM and a small model, about 8 GB on disk. That takes some "
    "minutes: much is downloaded and unpacked."
)


def setup(
    *,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="The embedding model instead: what topics need.")
    ] = False,
) -> None:
    """Install the local engine and its default model; does nothing where they are there."""
    console, settings = Console(stderr=True), load_settings()
    if embeddings:
        model = ensure_embedding_model(settings, ConsoleProgress(console))
        console.print(f"The embedding model is ready: {model}", highlight=False, soft_wrap=True)
        return
    announce_install(settings, console)
    engine = ensure_engine(settings, ConsoleProgress(console))
    chosen = best_type(settings, ConsoleProgress(console))
    console.print(
        f"The engine is ready: {engine.python}\nIt computes in {chosen.name}: {chosen.reason}",
        highlight=False,
        soft_wrap=True,
    )


def announce_install(settings: Settings, console: Console) -> None:
    """Say that the engine's installation comes first, and why it takes long, where it is to be made."""
    if not environment_ready(settings):
        console.print(INSTALLS, highlight=False, soft_wrap=True)
