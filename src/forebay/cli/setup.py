"""`forebay setup`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from forebay.embed.model import ensure_embedding_model
from forebay.engine.launch import ConsoleProgress, ensure_engine
from forebay.settings import load_settings


def setup(
    *,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="The embedding model instead: what topics need.")
    ] = False,
) -> None:
    """Install the local engine and its default model; does nothing where they are there."""
    console = Console(stderr=True)
    if embeddings:
        model = ensure_embedding_model(load_settings(), ConsoleProgress(console))
        console.print(f"The embedding model is ready: {model}", highlight=False, soft_wrap=True)
        return
    engine = ensure_engine(load_settings(), ConsoleProgress(console))
    console.print(f"The engine is ready: {engine.python}", highlight=False, soft_wrap=True)
