"""`forebay init`: a first pipeline file from what somebody has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.output import errors_console, say
from forebay.errors import SettingError


def init(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")] = Path(
        "pipeline.yaml"
    ),
    *,
    source: Annotated[
        str | None,
        typer.Option(
            help="What to read: a .jsonl or .csv file, wikimedia, jetstream, generator, or "
            "kafka://HOST:PORT/TOPIC."
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Template of the question about each event.")] = None,
    choices: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="The possible answers; without it, any text.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="URL of an engine, or local: one that Forebay starts.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name, if the engine serves several.")] = None,
    key: Annotated[str | None, typer.Option(help="Field whose events stay in order.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the pipeline; by default the source's.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing and take the defaults.")] = False,
) -> None:
    """Write a first pipeline file: asks for what is not given, and overwrites nothing."""
    from forebay.config.load import parse_spec
    from forebay.config.starter import (
        LOCAL,
        Starter,
        fields_of,
        name_of,
        pipeline_text,
        reference,
        text_field,
    )
    from forebay.documents.yaml import parse_yaml

    if file.exists():
        raise SettingError(f"{file} exists; forebay init overwrites nothing: name another file")
    if not file.parent.is_dir():
        raise SettingError(f"there is no folder {file.parent} to write {file.name} to")
    asks = not yes and sys.stdin.isatty()
    if not asks and not yes and (source is None or prompt is None):
        raise SettingError("forebay init: nobody can be asked here; give --source and --prompt, or --yes")

    def ask(given: str | None, question: str, default: str) -> str:
        if given is not None or not asks:
            return default if given is None else given
        return str(typer.prompt(question, default=default, err=True))

    source = ask(
        source, "What to read (a file, wikimedia, jetstream, generator, kafka://HOST:PORT/TOPIC)", "generator"
    )
    fields = fields_of(source)
    if asks and fields:
        say(errors_console(), f"Its fields: {', '.join(fields)}")
    usual = "In one word, what is this about? {{ " + reference(text_field(fields)) + " }}"
    prompt = ask(prompt, "What to ask about each event", usual)
    if asks and choices is None:
        choices = str(
            typer.prompt("The answers that there are, with commas (empty: any text)", default="", err=True)
        )
    answers = tuple(dict.fromkeys(one.strip() for one in (choices or "").split(",") if one.strip()))
    engine = ask(engine, "Who answers (the URL of an engine, or local)", LOCAL)
    starter = Starter(name or name_of(source), source, prompt, engine, model, answers, key)
    text = pipeline_text(starter, fields, file.parent)
    # Before it is written: a file that `forebay run` would refuse helps nobody.
    document, lines = parse_yaml(text, str(file))
    parse_spec(document, base=file.resolve().parent, name=str(file), lines=lines)
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise SettingError(f"{file} cannot be written: {error.strerror}") from None
    say(
        errors_console(),
        f"{file} is written. Look at it: forebay run {file} --dry-run. Run it: forebay run {file}",
    )
