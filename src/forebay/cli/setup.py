"""What a machine needs: `forebay setup`, `forebay connectors`, `forebay doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.output import (
    Command,
    JsonFile,
    check_json,
    errors_console,
    results_console,
    say,
    shows_text,
    write_json,
)
from forebay.errors import SettingError
from forebay.settings import Settings, load_settings
from forebay.untrusted_text import replace_controls

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
        from forebay.embed import ensure_embedding_model

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


connectors = typer.Typer(
    help="Flink's own connectors, which are not on PyPI.", no_args_is_help=True, add_completion=False
)


@connectors.callback()
def _several() -> None:
    """Keeps `install` a command of its own, though it is the only one."""


@connectors.command(cls=Command)
def install(
    connector: Annotated[str, typer.Argument(help="The connector: kafka.")],
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FOLDER|URL",
            help="A folder that holds the jar, or a Maven repository; by default FOREBAY_CONNECTORS_FROM, "
            "else Maven Central.",
        ),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Download a connector's jar, verify it, and keep it. Does nothing if it is there."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from forebay.connectors.jars import JARS, MAVEN_CENTRAL, install_jar
    from forebay.documents import suggestion

    check_json(json)
    jar = JARS.get(connector)
    if jar is None:
        raise SettingError(
            f"there is no connector {connector[:60]!r}; there is {', '.join(JARS)}"
            f"{suggestion(connector, JARS)}"
        )
    settings = load_settings()
    console = errors_console()
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task(jar.name, total=jar.size)

        def show(come: int, whole: int) -> None:
            bar.update(task, completed=come, total=whole)

        place = install_jar(
            jar, settings.connectors, origin or settings.connectors_from or MAVEN_CENTRAL, show
        )
    say(console, f"The {connector} connector is ready: {place}")
    write_json(json, {"connector": connector, "path": str(place), "sha256": jar.sha256})


STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}


def doctor(*, json: JsonFile = None) -> None:
    """Say what is missing and how to get it. The exit status is 1 if something needed is missing."""
    from rich.text import Text

    from forebay.engine.doctor import Verdict, examine

    check_json(json)
    findings = examine(load_settings())
    write_json(json, {"findings": [asdict(finding) for finding in findings]})
    if shows_text(json):
        console = results_console()
        for finding in findings:
            verdict, found = finding.verdict.value, replace_controls(finding.found)
            line = Text.assemble((f"{verdict:8}", STYLES[verdict]), f" {finding.subject}: {found}")
            say(console, line)
            if finding.mend:
                say(console, f"{'':9}→ {finding.mend}")
    if any(finding.verdict is Verdict.MISSING for finding in findings):
        raise typer.Exit(1)
