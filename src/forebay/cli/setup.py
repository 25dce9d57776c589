"""`forebay setup`."""

from __future__ import annotations

from rich.console import Console

from forebay.engine.launch import ConsoleProgress, ensure_engine
from forebay.settings import load_settings


def setup() -> None:
    """Install the local engine and its default model; does nothing where they are there."""
    console = Console(stderr=True)
    engine = ensure_engine(load_settings(), ConsoleProgress(console))
    console.print(f"The engine is ready: {engine.python}", highlight=False, soft_wrap=True)
