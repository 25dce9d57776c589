"""`forebay setup`, `forebay connectors` and `forebay doctor`: prepare a machine."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.options import option
from forebay.cli.output import (
    Command,
    JsonFile,
    check_json,
    errors_console,
    print_line,
    print_report,
    write_json,
)
from forebay.errors import SettingError
from forebay.settings import Settings, load_settings
from forebay.untrusted_text import replace_controls

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from forebay.connectors.jars import Jar

INSTALLS = (
    "The engine must be installed once: vLLM and a small model, about 8 GB on disk. This takes some "
    "minutes, because much is downloaded and unpacked."
)


def setup(
    *,
    embeddings: Annotated[
        bool, option("Install the embedding model for topics instead.", "--embeddings")
    ] = False,
    json: JsonFile = None,
) -> None:
    """Install the local engine and its default model, and prepare Flink's classes, unless that is done."""
    from forebay.engine.launch import ConsoleProgress, best_type, ensure_engine

    check_json(json)
    console, settings = errors_console(), load_settings()
    progress = ConsoleProgress(console)
    if embeddings:
        from forebay.apps.topics.embedding import ensure_embedding_model

        model = ensure_embedding_model(settings, progress)
        print_line(console, f"The embedding model is ready: {model}")
        write_json(json, {"embedding_model": str(model)})
        return
    announce_install(settings, console)
    engine = ensure_engine(settings, progress)
    chosen = best_type(settings, progress)
    print_line(
        console, f"The engine is ready: {engine.python}\nIt computes in {chosen.name}: {chosen.reason}"
    )
    document = {"python": str(engine.python), "model": str(engine.model)}
    write_json(json, {**document, "type": chosen.name, "why": chosen.reason})
    prepare_classes(settings, console)


def prepare_classes(settings: Settings, console: Console) -> None:
    from forebay.connectors.jars import installed_jars
    from forebay.flink.jvm import class_archive

    environment, jars = settings.child_environment(), installed_jars(settings.connectors)
    # Of runs without event time, of those with it, and of those with topics, which programs share.
    kinds: list[dict[str, Any]] = [{}, {"planner": True}, *([{"jars": jars}] if jars else [])]
    prepared, why = True, ""
    with console.status("Preparing Flink's classes, so that runs start faster: some seconds, once"):
        try:
            for kind in kinds:
                prepared &= class_archive(settings.java, **kind).make(environment)
        except SettingError as error:
            prepared, why = False, f": {error}"
    if not prepared:
        print_line(console, f"Flink's classes were not written to {settings.java}; runs start slower{why}")


def announce_install(settings: Settings, console: Console) -> None:
    from forebay.engine.launch.environment import environment_ready

    if not environment_ready(settings):
        print_line(console, INSTALLS)


connectors = typer.Typer(
    help="Flink's own connectors, which are not on PyPI.", no_args_is_help=True, add_completion=False
)


@connectors.command(cls=Command)
def install(
    connector: Annotated[str, typer.Argument(help="The connector: kafka, or s3 (a file system).")],
    origin: Annotated[
        str | None,
        option(
            "Folder with the jar, or Maven repository; default: FOREBAY_CONNECTORS_FROM, or Maven Central.",
            "--from",
            metavar="FOLDER|URL",
        ),
    ] = None,
    json: JsonFile = None,
) -> None:
    """Download and verify a connector's jar, and prepare its classes, unless that is done."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from forebay.connectors.jars import JARS, MAVEN_CENTRAL, install_jar
    from forebay.documents import suggestion

    check_json(json)
    jar = JARS.get(connector)
    if jar is None:
        raise SettingError(
            f"unknown connector {connector[:60]!r}; expected one of {', '.join(JARS)}"
            f"{suggestion(connector, JARS)}"
        )
    settings = load_settings()
    console = errors_console()
    columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(jar.name, total=jar.size)

        def show(copied: int, whole: int) -> None:
            bar.update(task, completed=copied, total=whole)

        where = origin or settings.connectors_from or MAVEN_CENTRAL
        place = install_jar(jar, settings.connectors, where, show)
    print_line(console, f"The {connector} connector is ready: {place}")
    write_json(json, {"connector": connector, "path": str(place), "sha256": jar.sha256})
    prepare_classes(settings, console)


@connectors.command(name="list", cls=Command)
def list_(*, json: JsonFile = None) -> None:
    """List connectors and where they are installed."""
    from forebay.connectors.jars import JARS

    check_json(json)
    settings = load_settings()
    found = [(jar, _place(jar, settings)) for jar in JARS.values()]

    def show(console: Console) -> None:
        for jar, place in found:
            where = f"not installed; run: forebay connectors install {jar.connector}"
            print_line(console, f"{jar.connector}: {where if place is None else place}")

    places = [{"connector": jar.connector, "path": place and str(place)} for jar, place in found]
    print_report(json, {"connectors": places}, show)


def _place(jar: Jar, settings: Settings) -> Path | None:
    from forebay.connectors.jars import installed_jar

    with suppress(SettingError):
        return installed_jar(jar, settings.connectors)
    return None


STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}


def doctor(*, json: JsonFile = None) -> None:
    """Check what is missing and how to install it. The exit status is 1 if something required is missing."""
    from rich.text import Text

    from forebay.cli.machine_checks import Finding, Severity, examine
    from forebay.connectors.jars import JARS

    check_json(json)
    settings = load_settings()
    findings = examine(settings)
    for jar in JARS.values():
        # Never `MISSING`, because only some users need a connector.
        place, fix = _place(jar, settings), f"forebay connectors install {jar.connector}, if you use it"
        found = ("not installed", fix) if place is None else (str(place), "")
        findings.append(Finding(f"{jar.connector} connector", Severity.OK, *found))

    def show(console: Console) -> None:
        for finding in findings:
            verdict, found = finding.verdict.value, replace_controls(finding.found)
            print_line(
                console, Text.assemble((f"{verdict:8}", STYLES[verdict]), f" {finding.subject}: {found}")
            )
            if finding.fix:
                print_line(console, f"{'':9}→ {finding.fix}")

    print_report(json, {"findings": [asdict(finding) for finding in findings]}, show)
    if any(finding.verdict is Severity.MISSING for finding in findings):
        raise typer.Exit(1)
