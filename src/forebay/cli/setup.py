"""`forebay setup`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.json_option import JsonFile, check_json, write_json
from forebay.cli.terminal import errors_console, say
from forebay.settings import Settings, load_settings

if TYPE_CHECKING:
    from rich.console import Console

INSTALLS = (
    "The engine is installed first, once: vLLM and a small model, about 8 GB on disk. That takes some "
    "minutes: much is downloaded and unpacked."
)


def setup(
    *,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Install the embedding model instead, which topics need.")
    ] = False,
    json: JsonFile = None,
) -> None:
    """Install the local engine and its default model; does nothing where they are there."""
    from forebay.engine.launch import ConsoleProgress, best_type, ensure_engine

    check_json(json)
    console, settings = errors_console(), load_settings()
    progress = ConsoleProgress(console)
    if embeddings:
        from forebay.embed.model import ensure_embedding_model

        model = ensure_embedding_model(settings, progress)
        say(console, f"The embedding model is ready: {model}")
        write_json(json, {"embedding_model": str(model)})
        return
    announce_install(settings, console)
    engine = ensure_engine(settings, progress)
    chosen = best_type(settings, progress)
    say(console, f"The engine is ready: {engine.python}\nIt computes in {chosen.name}: {chosen.reason}")
    document = {"python": str(engine.python), "model": str(engine.model)}
    write_json(json, {**document, "type": chosen.name, "why": chosen.reason})


def announce_install(settings: Settings, console: Console) -> None:
    """Say that the engine's installation comes first, and why it takes long, where it is to be made."""
    from forebay.engine.launch.environment import environment_ready

    if not environment_ready(settings):
        say(console, INSTALLS)
