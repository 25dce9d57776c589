"""`forebay connectors`: Flink's own connectors."""

from __future__ import annotations

from typing import Annotated

import typer

from forebay.cli.json_option import Command, JsonFile, check_json, write_json
from forebay.cli.terminal import errors_console, say
from forebay.errors import SettingError
from forebay.settings import load_settings

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
    from forebay.documents.load import suggestion

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
