"""`forebay ask`: run a prompt over lines of standard input."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import orjson
import typer

from forebay.cli.options import ApiKeyEnv, ModelName, option
from forebay.cli.output import STDOUT, check_json, errors_console, print_line
from forebay.cli.streams import drop_output
from forebay.errors import SettingError
from forebay.settings import load_settings

if TYPE_CHECKING:
    from rich.console import Console

    from forebay.pipeline.spec import PipelineSpec

MAX_SCHEMA_BYTES = 1 << 20
MAX_CHOICES = 1000
OTHER_FILES = 64
BROKEN_PIPE_STATUS = 141
"""Exit status of a process killed by SIGPIPE."""


class InputKind(str, Enum):
    auto = "auto"
    jsonl = "jsonl"
    text = "text"


def ask(
    prompt: Annotated[str, typer.Argument(help="Template of the prompt, such as 'In a word: {{ text }}'.")],
    *,
    schema: Annotated[
        Path | None, option("JSON schema that the answers must satisfy.", metavar="FILE")
    ] = None,
    choices: Annotated[str | None, option("Each answer is one of these.", metavar="A,B,C")] = None,
    engine: Annotated[
        list[str] | None, option("URL of an engine; may be repeated; otherwise a local one is started.")
    ] = None,
    model: ModelName = None,
    api_key_env: ApiKeyEnv = None,
    capacity: Annotated[int, option("Maximum number of requests in flight.", min=1, max=10_000)] = 32,
    set: Annotated[
        list[str] | None, option("A pipeline setting, such as sampling.max_tokens=20.", metavar="KEY=VALUE")
    ] = None,
    input_kind: Annotated[
        InputKind, option("Format of the lines: JSON objects, or texts (field `text`).", "--input")
    ] = InputKind.auto,
    unordered: Annotated[
        bool, option("Print answers as they arrive, not in the order of the lines.", "--unordered")
    ] = False,
    json: Annotated[
        str | None,
        option(
            "Write each result as a line of JSON to FILE, or instead of the text to standard output.",
            "--json",
            metavar="[FILE]",
        ),
    ] = None,
) -> None:
    """Ask a model about each line of standard input (JSON objects or texts), without Flink.

    Prompt, schema and retries work as in a pipeline. Lines without an answer are listed on standard error
    with the cause; the exit status is then 1.
    """
    check_json(json)
    document = _document(prompt, _schema_of(schema, choices), model, api_key_env, capacity)
    if sys.stdin.isatty():
        print_line(errors_console(), "Reading lines from the terminal; end with Ctrl-D.")
    try:
        failed = _run(document, set or [], engine or [], input_kind, json, ordered=not unordered)
    except BrokenPipeError:
        # The reader is gone, as after `| head`.
        drop_output()
        raise typer.Exit(BROKEN_PIPE_STATUS) from None
    if failed:
        raise typer.Exit(1)


def _run(
    document: dict[str, Any],
    values: Sequence[str],
    engine: Sequence[str],
    kind: InputKind,
    json: str | None,
    *,
    ordered: bool,
) -> int:
    from forebay.documents import known_paths
    from forebay.engine.launch import ConsoleProgress, local_replicas
    from forebay.pipeline.inference import served_by
    from forebay.pipeline.load import parse_spec, set_values
    from forebay.pipeline.preflight import check_secrets, constant_prompt_warning
    from forebay.pipeline.spec import PipelineSpec

    given = set_values(document, values, known_paths(PipelineSpec, document))
    console = errors_console()
    spec = parse_spec(document, base=Path.cwd(), name="forebay ask", given=given)
    check_secrets(spec, here=True)
    if (warning := constant_prompt_warning(spec)) is not None:
        print_line(console, f"warning: {warning}", style="yellow")
    _check_files(spec.capacity)
    with ExitStack() as stack:
        if not engine and spec.engine.replicas() is None:
            place = local_replicas(settings=load_settings(), progress=ConsoleProgress(console))
            engine = list(stack.enter_context(place))
        served = served_by(spec, engine, ChangesOnly(partial(print_line, console)))
        lines = sys.stdout
        if json is not None and json != STDOUT:
            lines = stack.enter_context(open(json, "w", encoding="utf-8"))
        texts = None if json == STDOUT else sys.stdout
        writer = _Writer(None if json is None else lines, texts, console)
        asyncio.run(_answer(spec, served, kind, writer, ordered=ordered))
    return writer.failed


def _check_files(capacity: int) -> None:
    from forebay.processes import raise_file_limit

    # Each request in flight has a connection; without one, the engine would be blamed.
    needed = capacity + OTHER_FILES
    most = raise_file_limit(needed)
    if most < needed:
        raise SettingError(
            f"capacity: expected at most {max(1, most - OTHER_FILES)}, found {capacity}: this process may "
            f"open {most} files; raise the limit with ulimit -n {needed}"
        )


async def _answer(
    spec: PipelineSpec, served: Any, kind: InputKind, writer: _Writer, *, ordered: bool
) -> None:
    from forebay.flink.metrics import InferenceCounters
    from forebay.flink.request_handler import RequestHandler
    from forebay.pipeline.ask import Lines, answers, events
    from forebay.pipeline.inference import call_of

    call = call_of(spec, replicas=served.replicas, model=served.model)
    handler = RequestHandler(call, InferenceCounters())
    try:
        # Its own file object: the process cannot join a thread that is blocked in that of `sys.stdin`.
        records = events(Lines(os.fdopen(os.dup(sys.stdin.fileno()), "rb"), kind.value))
        async with aclosing(answers(handler, records, capacity=spec.capacity, ordered=ordered)) as answered:
            async for answer in answered:
                writer.write(answer)
    finally:
        await handler.close()


class ChangesOnly:
    """A `Note` that passes on a text only if it differs from the one before."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._last = ""

    def __call__(self, text: str, waited_s: float) -> None:
        if text != self._last:
            self._last = text
            self._show(text)


class _Writer:
    """Prints answers as they arrive. `lines` receives JSON, `texts` plain answers; either may be None."""

    def __init__(self, lines: TextIO | None, texts: TextIO | None, console: Console) -> None:
        self._lines = lines
        self._texts = texts
        self._console = console
        self.failed = 0

    def write(self, answer: Any) -> None:
        from forebay.connectors.formats import result_json
        from forebay.engine.answer import CUT
        from forebay.json_numbers import dump_json
        from forebay.records import DeadLetter
        from forebay.untrusted_text import replace_controls

        if isinstance(answer, DeadLetter):
            self.failed += 1
            print_line(self._console, f"{answer.position}: {answer.cause}: {answer.detail}", style="red")
            return
        if answer.finish_reason == CUT:
            words = "the answer was truncated at max_tokens; raise it with --set sampling.max_tokens=N"
            print_line(self._console, f"{answer.position}: {words}", style="yellow")
        if self._lines is not None:
            print(result_json(answer), file=self._lines, flush=True)
        if self._texts is not None:
            text = answer.answer
            text = text if isinstance(text, str) else dump_json(text).decode()
            # One line without terminal control characters.
            print(replace_controls(" ".join(text.split("\n"))), file=self._texts, flush=True)


def _document(
    prompt: str, schema: Mapping[str, Any] | None, model: str | None, api_key_env: str | None, capacity: int
) -> dict[str, Any]:
    # Not used: lines come from standard input, answers go to standard output.
    ends = {"source": {"type": "generator"}, "sink": {"type": "stdout"}}
    document: dict[str, Any] = {"name": "ask", **ends, "prompt": prompt, "capacity": capacity}
    document["engine"] = {"model": model}
    if schema is not None:
        document["output"] = {"schema": schema}
    if api_key_env is not None:
        document["engine"]["api_key"] = {"env": api_key_env}
    return document


def _schema_of(file: Path | None, choices: str | None) -> Mapping[str, Any] | None:
    from forebay.files import read_bytes

    if file is not None and choices is not None:
        raise SettingError("--choices: not allowed with --schema; use one of them")
    if choices is not None:
        names = list(dict.fromkeys(name.strip() for name in choices.split(",") if name.strip()))
        if not 2 <= len(names) <= MAX_CHOICES:
            raise SettingError(
                f"--choices: expected 2 to {MAX_CHOICES} answers separated by commas, found {len(names)}"
            )
        return {"type": "string", "enum": names}
    if file is None:
        return None
    data = read_bytes(file, MAX_SCHEMA_BYTES, f"--schema: {file}")
    try:
        schema = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise SettingError(f"--schema: {file} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise SettingError(f"--schema: expected {file} to hold a JSON object, found {type(schema).__name__}")
    return schema
