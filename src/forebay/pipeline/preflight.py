"""Checks before a pipeline starts: secrets, locations, connectors, and the first records of its source."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from forebay.clients.s3.client import S3Client, StoreAway
from forebay.clients.s3.location import S3Path, uri_of
from forebay.connectors.files.settings import CsvSource, FileSource, StdoutSink
from forebay.connectors.files.unpack import foreign_format
from forebay.connectors.formats import LINE_FEEDS
from forebay.connectors.jars import installed_jar
from forebay.engine.prompt import FieldMissing, fields_in, is_constant, names_of
from forebay.errors import SettingError, TemplateFailed
from forebay.files import OTHERS, check_nobody_else_writes
from forebay.pipeline.plan import Plan
from forebay.pipeline.spec import PipelineSpec
from forebay.records import JSON, DeadLetter, Event
from forebay.settings import otel_installed, otel_queue_spans, otel_signals, read_secret

REDIRECTS = "decides which files are changed"


def check(plan: Plan, *, dry_run: bool = False) -> None:
    """Check everything that a run needs before Flink starts, except Kafka. Blocks, and creates directories.

    A `dry_run` creates none, and needs no connector installed. Raises `SettingError`; `SetupError` if a
    client is not installed.
    """
    spec, cluster = plan.spec, plan.cluster
    if cluster is not None and isinstance(spec.sink, StdoutSink):
        raise SettingError(
            "sink.type: expected jsonl with --cluster, found stdout; a cluster prints where its tasks run"
        )
    if cluster is not None and spec.task_managers > 1:
        raise SettingError(
            f"task_managers: expected 1 with --cluster, which has task managers of its own, found "
            f"{spec.task_managers}"
        )
    check_secrets(spec, here=cluster is None)
    if spec.opentelemetry and cluster is None:
        otel_signals()
        otel_queue_spans()
        with otel_installed():
            import forebay.otel  # noqa: F401
    check_paths(plan, make=not dry_run)
    for jar in () if dry_run else plan.connectors:
        installed_jar(jar, plan.settings.connectors)
    if plan.in_process and isinstance(plan.state, S3Path):
        raise SettingError(f"checkpoint.dir: expected a folder with in_process, found {plan.state}")


def check_paths(plan: Plan, *, make: bool = True) -> None:
    """Raise `SettingError` if a path cannot be read or written."""
    for key, connector in {"source": plan.spec.source, **plan.spec.sinks()}.items():
        connector.check(key)
    for key, folder in plan.places.items():
        if isinstance(folder, S3Path):
            _check_bucket(key, folder)
            continue
        try:
            if key != "journal.path":
                uri_of(folder)
            if make:
                folder.mkdir(parents=True, exist_ok=True)
            place = folder if make else _nearest(folder)
        except OSError as error:
            raise SettingError(f"{key}: {folder} cannot be created: {error.strerror}") from None
        except SettingError as error:
            raise SettingError(f"{key}: {error}") from None
        if not os.access(place, os.W_OK | os.X_OK):
            raise SettingError(f"{key}: {folder} cannot be written: no permission")
        try:
            check_nobody_else_writes(folder, REDIRECTS, by=stat.S_IWOTH if key == "journal.path" else OTHERS)
        except SettingError as error:
            raise SettingError(f"{key}: {error}") from None


def _check_bucket(key: str, folder: S3Path) -> None:
    try:
        S3Client(folder.bucket).check(folder.key)
    except (SettingError, StoreAway) as error:
        raise SettingError(f"{key}: {error}") from None


def check_secrets(spec: PipelineSpec, *, here: bool) -> None:
    """Raises `SettingError` and `SetupError`. `here`: tasks run in this environment, not on a cluster."""
    key = spec.engine.secret()
    if key is not None:
        try:
            read_secret(key)
        except SettingError as error:
            raise SettingError(f"engine.api_key: {error}") from None
    if here:
        for where, connector in {"source": spec.source, **spec.sinks()}.items():
            connector.check_secrets(where)


def _nearest(folder: Path) -> Path:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return there


IN_BRACES = re.compile(r"\{\s*([A-Za-z_][\w.]*)\s*\}")
MAX_RECORDS = 100
MAX_CHARS = 300


def first_record_warning(spec: PipelineSpec) -> str | None:
    """Explain why none of a file's first hundred records is usable or has the requested `key`. Blocks.

    None if one does, or if files are followed. Raises `SettingError` if the source cannot be read, or a CSV
    file lacks a named column.
    """
    spec.source.check("source")
    look = _Templates(spec)
    found: list[_Doubt] = []
    letters: list[DeadLetter] = []
    for record in islice(spec.source.first_records(), MAX_RECORDS):
        why = look(record)
        if why is None:
            return None
        found.append(why)
        if isinstance(record, DeadLetter):
            letters.append(record)
    if not found:
        return None
    which = f"none of the first {len(found)} records" if len(found) > 1 else "not even the first record"
    keyless = next((why for why in found if why.usable), None)
    if keyless is not None:
        return f"source: {which} has a key: {keyless.text[:MAX_CHARS]}"
    first = found[0].text[:MAX_CHARS]
    if isinstance(spec.source, CsvSource) and not letters and spec.source.has_one_header():
        raise SettingError(f"{first}; it is so in every row of {spec.source.path}")
    instead = ""
    if any(map(_is_binary, letters)) and (foreign := foreign_format(letters[0].raw)) is not None:
        first = foreign
    elif len(letters) == len(found):
        tried = spec.source.delimiter if isinstance(spec.source, CsvSource) else None
        instead = likely_instead([letter.raw for letter in letters], tried)
    return f"source: {which} can be used: {first}{'; ' if instead else ''}{instead}"


def _is_binary(letter: DeadLetter) -> bool:
    try:
        return "\0" in letter.raw.decode()
    except UnicodeDecodeError:
        return True


def constant_prompt_warning(spec: PipelineSpec) -> str | None:
    """Explain that all events would get the same prompt, and how a field is written; None if they do not."""
    parts = [spec.prompt] if spec.prompt is not None else [message.content for message in spec.messages]
    if not parts or not all(map(is_constant, parts)):
        return None
    name = next((found[1] for part in parts if (found := IN_BRACES.search(part))), None)
    fix = "add one with {{ NAME }}" if name is None else f"write {{{{ {name} }}}} instead of {{{name}}}"
    return f"the prompt has no field, so every event gets the same question: {fix}"


def reads_nothing(spec: PipelineSpec) -> bool:
    """Whether the source is bounded files without a record. Blocks."""
    from forebay.connectors.files.source import has_no_records

    source = spec.source
    return isinstance(source, FileSource) and not source.follow and has_no_records(source.files())


class _Doubt(NamedTuple):
    text: str
    usable: bool = False


class _Templates:
    def __init__(self, spec: PipelineSpec) -> None:
        fields = (
            spec.id_template(),
            spec.priority_template(),
            spec.answer_tokens_template(),
            spec.class_template(),
        )
        self._fields = [template for template in fields if template is not None]
        self._key = spec.key_template()
        application = spec.application
        self._needs_key = spec.budget is not None or (application is not None and application.needs_key)
        # A missing column is missing in every row.
        self._columns = fields_in(spec.key or "") if isinstance(spec.source, CsvSource) else frozenset()
        self._prompt = spec.prompt_template()
        self._text = None if spec.application is None else spec.application.text_field

    def __call__(self, record: Event | DeadLetter) -> _Doubt | None:
        if isinstance(record, DeadLetter):
            return _Doubt(record.detail)
        keyless = None
        try:
            key = None
            try:
                if self._key is not None:
                    key = self._key.render(record.fields, time_ms=record.time_ms)
            except FieldMissing as error:
                if self._needs_key or self._columns - record.fields.keys():
                    raise
                keyless = _Doubt(str(error), usable=True)
            for template in self._fields:
                template.render(record.fields, time_ms=record.time_ms)
            if self._prompt is not None:
                self._prompt.render(record.fields, key=key, time_ms=record.time_ms)
        except TemplateFailed as error:
            return _Doubt(str(error))
        if self._text is not None and not _has(record.fields, self._text):
            return _Doubt(
                f"application.text: field {self._text!r} is missing; the event has {names_of(record.fields)}"
            )
        return keyless


def _has(value: JSON, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True


SEPARATORS = {b",": "", b";": ' and `delimiter: ";"`', b"\t": ' and `delimiter: "\\t"`'}


def likely_instead(lines: Sequence[bytes], tried: str | None = None) -> str:
    """Guess the format of a file that has no JSON object, or no CSV row with delimiter `tried`."""
    first = next((line.strip() for line in lines if line.strip()), b"")
    if tried is None and re.search(rb"\r(?!\n)", first):
        return f"it has a carriage return; {LINE_FEEDS}"
    if first.startswith(b"["):
        return "it looks like a JSON array, and JSON lines have one object a line: jq -c '.[]' makes them"
    if first.startswith(b"{"):
        if first.endswith(b"}"):
            return "" if tried is None else "it looks like JSON lines: use `type: jsonl`"
        return (
            "it looks like JSON over several lines, and JSON lines have one object a line: jq -c . makes them"
        )
    for separator, option in SEPARATORS.items():
        if separator.decode() != tried and all(separator in line for line in (first, *lines[:2])):
            if tried is not None:
                return f"its columns seem to be separated by {separator.decode()!r}: name that `delimiter`"
            return f"it looks like CSV: use `type: csv`{option}"
    return ""
