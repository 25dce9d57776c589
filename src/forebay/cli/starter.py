"""Makes the commented first pipeline file of `forebay init`."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.records import Event

if TYPE_CHECKING:
    from forebay.connectors.files.source import Files
    from forebay.pipeline.spec import PipelineSpec

FEEDS = {"wikimedia": "title", "jetstream": "text", "generator": "text"}
"""Sources without a file, and the field of each to ask about."""
TEXTS = ("text", "body", "message", "content", "post", "comment", "description", "title")
NO_NAMES = {"event", "key", "time_ms", "self", "not", "true", "false", "none", "True", "False", "None"}
"""Words with another meaning in a template."""
LINE_ENDS = re.compile("[\x85\u2028\u2029]")
LOCAL = "local"
LOOKED_AT_RECORDS = 20
MAX_CHARS = 1000
MAX_FIELDS = 50


@dataclass(frozen=True, slots=True)
class Starter:
    """`source`: a file, one of `FEEDS` or `kafka://HOST:PORT/TOPIC`; without `choices`, any text."""

    name: str
    source: str
    prompt: str
    engine: str = LOCAL
    model: str | None = None
    choices: Sequence[str] = ()
    key: str | None = None


def parsed(text: str, folder: Path) -> PipelineSpec:
    """Parse `text` as a pipeline file in `folder`. `SettingError` names keys but no lines."""
    from forebay.pipeline.load import parse_spec
    from forebay.yaml_document import parse_yaml

    document, _ = parse_yaml(text, "forebay init")
    return parse_spec(document, base=folder.resolve(), name="forebay init")


def fields_of(source: str) -> list[str]:
    """The field names in the first lines of a source; empty if unknown. Raises `SettingError`."""
    from forebay.connectors.files.reader import columns_at

    if source in FEEDS:
        return [FEEDS[source]]
    files = _files(source)
    if files is not None and files.format.kind == "csv":
        return [name for name in columns_at(files) if name][:MAX_FIELDS]
    found: dict[str, None] = {}
    for event in _first_events(files):
        found.update(dict.fromkeys(event.fields))
    return list(found)[:MAX_FIELDS]


def text_field(source: str, fields: Sequence[str]) -> str:
    """The one of `fields` to ask about: by its name, else with most letters in the first records."""
    lower = {name.lower(): name for name in reversed(fields)}
    named = next((lower[name] for name in TEXTS if name in lower), None)
    if named is not None or len(fields) < 2:
        return named or next(iter(fields), "text")
    letters = Counter[str]()
    for event in _first_events(_files(source)):
        texts = {name: text[:MAX_CHARS] for name, text in event.fields.items() if isinstance(text, str)}
        letters.update({name: sum(map(str.isalpha, text)) for name, text in texts.items()})
    return max(fields, key=lambda name: letters[name])


def _files(source: str) -> Files | None:
    """None for Kafka."""
    from forebay.connectors.files.guess import files_with
    from forebay.pipeline.load import guesses_of, source_settings

    settings = source_settings(source)
    return None if settings["type"] == "kafka" else files_with({**settings, **guesses_of(settings)})


def _first_events(files: Files | None) -> Iterator[Event]:
    from forebay.connectors.files.source import first_records

    records = iter(()) if files is None else first_records(files)
    return (record for record in islice(records, LOOKED_AT_RECORDS) if isinstance(record, Event))


def reference(field: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field) and field not in NO_NAMES
    return field if plain else f"event[{_json(field)}]"


def name_of(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", Path(text).stem.lower()).strip("-")[:63] or "first"


def pipeline_text(starter: Starter, fields: Sequence[str], folder: Path) -> str:
    lines = [
        "# A pipeline: events, a prompt for each, an engine, and a place for the answers.",
        "# All settings: docs/pipeline.md. Check it with: forebay run THIS-FILE --dry-run",
        f"name: {starter.name}",
        "",
        "# Where events come from. The position is saved, so that a stopped run resumes there.",
        "source:",
        *(
            f"  {key}: {_text(value) if isinstance(value, str) else _json(value)}{comment}"
            for key, value, comment in _source(starter.source, folder)
        ),
        "",
    ]
    may = ", ".join("".join(char if char.isprintable() else " " for char in name) for name in fields)
    known = f". Fields that templates may use: {may}" if fields else "; templates may use its fields."
    lines.append(f"# The prompt for each event{known}")
    lines += [f"prompt: {_text(starter.prompt)}", ""]
    if starter.choices:
        schema = {"type": "string", "enum": list(starter.choices)}
        lines += ["# The form of an answer: a JSON schema.", "output:", f"  schema: {_json(schema)}", ""]
    else:
        lines += ["# The form of an answer: any text; `output: {schema: …}` sets a JSON schema.", ""]
    lines += _engine(starter)
    if starter.key is not None:
        key = _text("{{ " + reference(starter.key) + " }}")
        lines += ["# Events with the same key stay in order.", f"key: {key}", "ordering: key", ""]
    lines += [
        "# Maximum length of an answer, in tokens.",
        "sampling: {max_tokens: 64}",
        "",
        "# Answers, each exactly once; events without one are in out/NAME-dead-letters, with the cause.",
        f"sink: {{type: jsonl, path: out/{starter.name}}}",
    ]
    return "\n".join(lines) + "\n"


def _source(source: str, folder: Path) -> Iterator[tuple[str, Any, str]]:
    """Names, values and comments."""
    from forebay.pipeline.load import guesses_of, source_settings

    found = source_settings(source)
    for key, value in found.items():
        yield key, os.path.relpath(value, folder.resolve()) if key == "path" else value, ""
    for key, value in guesses_of(found).items():
        yield key, value, "  # A guess: check it."
    if source == "generator":
        yield "rate", 20, ""


def _engine(starter: Starter) -> list[str]:
    model = [] if starter.model is None else [f"  model: {_text(starter.model)}"]
    if starter.engine == LOCAL:
        lines = [
            "# The engine: a small model that Forebay starts on this machine. To use your own:",
            "# engine: {url: http://HOST:PORT, model: NAME, api_key: {env: NAME_OF_A_VARIABLE}}",
        ]
        return [*lines, *(["engine:", *model] if model else []), ""]
    url = f"  url: {_text(starter.engine)}"
    return ["# The engine: an OpenAI-compatible server.", "engine:", url, *model, ""]


def _text(value: str) -> str:
    plain = re.fullmatch(r"[A-Za-z][\w./-]*", value) and value.lower() not in {"true", "false", "null"}
    return value if plain else _json(value)


def _json(value: Any) -> str:
    # YAML treats these as line ends, even inside quotes.
    return LINE_ENDS.sub(lambda end: f"\\u{ord(end[0]):04x}", json.dumps(value, ensure_ascii=False))
