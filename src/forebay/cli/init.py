"""`forebay init`: ask a few questions and write a first pipeline file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.options import ModelName, option
from forebay.cli.output import errors_console, print_line
from forebay.cli.starter import (
    LOCAL,
    Starter,
    fields_of,
    name_of,
    parsed,
    pipeline_text,
    reference,
    text_field,
)
from forebay.errors import SettingError

if TYPE_CHECKING:
    from forebay.pipeline.spec import PipelineSpec

NO_QUESTION = "?"


def init(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")] = Path(
        "pipeline.yaml"
    ),
    *,
    source: Annotated[
        str | None,
        option(
            "A .jsonl, .csv, .tsv, .txt or .log file, wikimedia, jetstream, generator, or kafka://HOST:PORT/TOPIC."
        ),
    ] = None,
    prompt: Annotated[str | None, option("Template of the prompt for each event.")] = None,
    choices: Annotated[str | None, option("The allowed answers; default: any text.", metavar="A,B,C")] = None,
    engine: Annotated[str | None, option("URL of an engine, or local: Forebay starts one.")] = None,
    model: ModelName = None,
    key: Annotated[str | None, option("Field whose events are kept in order.")] = None,
    name: Annotated[str | None, option("Name of the pipeline; default: the source's name.")] = None,
    yes: Annotated[bool, option("Ask nothing; use the defaults.", "--yes", "-y")] = False,
) -> None:
    """Write a first pipeline file. Asks for everything that is not given, and never overwrites a file.

    Asks again after an invalid answer.
    """
    from forebay.pipeline.preflight import reads_nothing

    if file.exists():
        raise SettingError(f"{file} exists and forebay init never overwrites: choose another file")
    if not file.parent.is_dir():
        raise SettingError(f"there is no folder {file.parent} to write {file.name} to")
    asks = not yes and sys.stdin.isatty()
    if not asks and not yes and (source is None or prompt is None):
        raise SettingError("forebay init: no terminal to ask questions; give --source and --prompt, or --yes")
    console = errors_console()

    def ask(given: str | None, question: str, default: str, check: Callable[[str], object]) -> str:
        if given is None and asks:
            return _asked(question, default, check)
        check(default if given is None else given)
        return default if given is None else given

    def made(**values: Any) -> PipelineSpec:
        return parsed(pipeline_text(replace(starter, **values), (), file.parent), file.parent)

    # Check options first, so that a wrong one does not throw away answers.
    starter = Starter(name or "first", "generator", NO_QUESTION, engine or LOCAL, model)
    made(key=key)

    def check_source(text: str) -> None:
        fields_of(text)
        _refuse_doubtful(made(source=text))

    what = "What to read (a file, wikimedia, jetstream, generator, kafka://HOST:PORT/TOPIC)"
    source = ask(source, what, "generator", check_source)
    starter = replace(starter, name=name or name_of(source), source=source)
    _refuse_doubtful(made(key=key))
    fields = fields_of(source)
    if reads_nothing(made()):
        empty = "has no records yet" if fields else "is empty, so its fields are unknown"
        print_line(console, f"warning: {source} {empty}", style="yellow")
    elif asks and fields:
        print_line(console, f"Fields: {', '.join(fields)}")

    usual = "In one word, what is this about? {{ " + reference(text_field(source, fields)) + " }}"
    question = "What to ask about each event"
    prompt = ask(prompt, question, usual, lambda text: _refuse_doubtful(made(prompt=text)))
    listed = ask(choices, "Allowed answers, separated by commas (empty: any text)", "", lambda _: None)
    answers = tuple(dict.fromkeys(one.strip() for one in listed.split(",") if one.strip()))
    engine = ask(engine, "Engine (a URL, or local)", LOCAL, lambda url: made(engine=url))
    starter = replace(starter, prompt=prompt, choices=answers, engine=engine, key=key)
    text = pipeline_text(starter, fields, file.parent)
    # Never write a file that `forebay run` would refuse.
    parsed(text, file.parent)
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise SettingError(f"{file} cannot be written: {error.strerror}") from None
    print_line(console, f"{file} written. Check it: forebay run {file} --dry-run. Run it: forebay run {file}")


def _asked(question: str, default: str, check: Callable[[str], object]) -> str:
    while True:
        answer = str(typer.prompt(question, default=default, err=True))
        try:
            check(answer)
        except SettingError as error:
            print_line(errors_console(), str(error), style="red")
        else:
            return answer


def _refuse_doubtful(spec: PipelineSpec) -> None:
    from forebay.pipeline.preflight import constant_prompt_warning, first_record_warning

    constant = None if spec.prompt == NO_QUESTION else constant_prompt_warning(spec)
    if (problem := constant or first_record_warning(spec)) is not None:
        raise SettingError(f"forebay init: {problem}")
