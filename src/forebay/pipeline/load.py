"""Turns the arguments of `forebay run` into a `PipelineSpec`, or a `SettingError` with all mistakes."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from forebay.apps import APPLICATIONS
from forebay.connectors import Source
from forebay.connectors.base import SourceSettings
from forebay.documents import Where, check_document, describe, known_paths, read_document, suggestion
from forebay.errors import MalformedRecord, SettingError
from forebay.pipeline.spec import PipelineSpec
from forebay.records import Event
from forebay.yaml_document import MAX_DEPTH

MAX_CHARS = 65_536
DOTTED = frozenset(("flink", "properties"))
"""Mappings whose own keys contain dots: the rest of the path is one key."""


@dataclass(frozen=True, slots=True)
class ApplicationOptions:
    """`source`: a file or folder, one of `SOURCES`, or `TOPIC_FORM`; `out`: None: `out/NAME`."""

    source: str | None = None
    out: Path | None = None
    key: str | None = None
    time: str | None = None

    def folder(self, name: str) -> Path:
        return self.out or Path("out", name)


def load_pipeline(
    pipeline: str, options: ApplicationOptions = ApplicationOptions(), settings: Sequence[str] = ()
) -> PipelineSpec:
    """Load `pipeline`, a file or the name of an application. Blocks on the file system.

    `settings` are `path.to.key=value` and override it. Raises `SettingError`.
    """
    applications = APPLICATIONS.names()
    if pipeline in applications:
        return preset_spec(pipeline, options, settings)
    _check_name(pipeline, applications)
    named = [f"--{each.name}" for each in fields(options) if getattr(options, each.name)]
    if named:
        raise SettingError(
            f"{', '.join(named)}: only for applications ({', '.join(applications)}); for a pipeline "
            f"file, edit it or use --set"
        )
    try:
        return load_spec(Path(pipeline), settings)
    except SettingError as error:
        from forebay.connectors.files.unpack import data_suffix

        if data_suffix(Path(pipeline)) not in FILES:
            raise
        fix = f"forebay init --source {shlex.quote(pipeline)}"
        raise SettingError(f"{error}; if it is a file of records, write a pipeline for it: {fix}") from None


def _check_name(pipeline: str, applications: Sequence[str]) -> None:
    path = Path(pipeline)
    # A broken link exists, and reading it gives a better message.
    if os.path.lexists(path):
        return
    names = [*applications]
    if path.parent.is_dir():
        siblings = sorted(file.name for file in path.parent.iterdir() if file.suffix in (".yaml", ".yml"))
        names += [str(path.parent / name) for name in siblings[:1000]]
    raise SettingError(
        f"{pipeline[:200]}: no such file or application; expected a pipeline file or one of "
        f"{', '.join(applications)}{suggestion(pipeline, names)}"
    )


def load_spec(path: str | Path, settings: Sequence[str] = ()) -> PipelineSpec:
    """Read and check the pipeline file at `path`. Blocks on the file system.

    `settings` are `path.to.key=value` and override the file. Relative paths are relative to the file's
    folder. Raises `SettingError` with one line per mistake.
    """
    value, lines = read_document(path, "pipeline")
    given: list[Where] = []
    if isinstance(value, dict):
        given = set_values(value, settings, known_paths(PipelineSpec, value))
    base = Path(path).resolve().parent
    return parse_spec(value, base=base, name=str(Path(path)), lines=lines, given=given)


def parse_spec(
    data: Any,
    *,
    base: Path | None = None,
    name: str = "pipeline",
    lines: Mapping[Where, int] | None = None,
    given: Collection[Where] = (),
) -> PipelineSpec:
    return check_document(PipelineSpec, data, what="pipeline", base=base, name=name, lines=lines, given=given)


def set_values(document: dict[str, Any], settings: Iterable[str], known: Iterable[Where]) -> list[Where]:
    """Put each `path.to.key=value` of `settings` into `document`; the last one wins. Returns their paths,
    or those of the mappings that hold only them.

    A value is parsed as JSON if possible, else it is text. Raises `SettingError`.
    """
    return [_set(document, setting, known) for setting in settings]


def _set(document: dict[str, Any], setting: str, known: Iterable[Where]) -> Where:
    if len(setting) > MAX_CHARS:
        raise SettingError(f"--set: expected at most {MAX_CHARS} characters, found {len(setting)}")
    name, equals, value = setting.partition("=")
    if not equals or not re.fullmatch(r"\w[\w-]*(\.[\w-]+)*", name):
        raise SettingError(
            f"--set: expected key.in.the.pipeline=VALUE, found {setting[:80]!r}{_meant(name, known)}"
        )
    path = _path(name)
    if len(path) > MAX_DEPTH:
        raise SettingError(f"--set: {name[:80]}: expected at most {MAX_DEPTH} levels, found {len(path)}")
    *above, last = path
    given = tuple(path)
    at = document
    for depth, step in enumerate(above):
        inner = at.get(step)
        if inner is None:
            inner = at[step] = {}
            given = min(given, tuple(path[: depth + 1]), key=len)
        if (*path[:depth], step) == ("engine",) and isinstance(inner, str | list):
            inner = at[step] = {"url": inner}
        if not isinstance(inner, dict):
            place = ".".join(path[: depth + 1])
            raise SettingError(
                f"--set: {name} lies within a value that is not a mapping: {place} is {describe(inner)}; "
                f"set {place} as a whole"
            )
        at = inner
    try:
        at[last] = orjson.loads(value)
    except orjson.JSONDecodeError:
        at[last] = value
    return given


def _path(name: str) -> list[str]:
    steps = name.split(".")
    for at, step in enumerate(steps[:-1]):
        if step in DOTTED:
            return [*steps[: at + 1], ".".join(steps[at + 1 :])]
    return steps


def _meant(name: str, known: Iterable[Where]) -> str:
    if not re.fullmatch(r"[\w.-]{1,80}", name):
        return ""
    paths = {".".join(map(str, path)): path for path in known}
    if name in paths:
        return f"; write {name}=VALUE"
    same = [path for path in paths if path.rpartition(".")[2] == name]
    return f"; did you mean {same[0]}=VALUE?" if len(same) == 1 else suggestion(name, paths)


SOURCES: dict[str, dict[str, Any]] = {
    "wikimedia": {"type": "sse", "preset": "wikimedia"},
    "jetstream": {"type": "websocket", "preset": "jetstream"},
    "generator": {"type": "generator"},
}
FILES: dict[str, dict[str, Any]] = {
    **{name: {"type": "jsonl"} for name in (".jsonl", ".ndjson", ".json")},
    ".csv": {"type": "csv"},
    ".tsv": {"type": "csv", "delimiter": "\t"},
    **{name: {"type": "text"} for name in (".txt", ".log")},
}
TOPIC = re.compile(r"kafka://(?P<bootstrap>[^/\s]+)/(?P<topic>[A-Za-z0-9._-]{1,249})")
TOPIC_FORM = "kafka://HOST:PORT/TOPIC"


def preset_spec(name: str, options: ApplicationOptions, settings: Sequence[str] = ()) -> PipelineSpec:
    """Relative paths are relative to the working directory. Raises `SettingError`."""
    application = APPLICATIONS.find(name)
    if application is None:
        raise SettingError(
            f"there is no application {name[:80]!r}; expected {', '.join(APPLICATIONS.names())}"
        )
    if options.source is None:
        raise SettingError(f"forebay run {name}: name the source with --source")
    document: dict[str, Any] = {
        **orjson.loads(orjson.dumps(dict(application.preset.document))),
        "name": name.replace("_", "-"),
        "application": {"type": name},
        "source": _timed(source_settings(options.source), options.time),
        "sink": {"type": "jsonl", "path": "results"},
        "dead_letters": {"type": "jsonl", "path": "dead-letters"},
        **({"assignments": {"type": "jsonl", "path": "assignments"}} if application.assigns else {}),
        "checkpoint": {"dir": "state"},
    }
    if options.key is not None:
        document["key"] = "{{ " + options.key + " }}"
    if options.time is not None:
        document.setdefault("event_time", {})
    given = set_values(document, settings, known_paths(PipelineSpec, document))
    read = document["source"]
    base = options.folder(name).resolve()
    kinds = {settings["type"] for settings in FILES.values()}
    of_files = isinstance(read, dict) and read.get("type") in kinds
    needs_times = application.needs_event_time or application.needs_times_of_files
    if needs_times and of_files and read.get("time") is None:
        if read["type"] == "text" and read.get("line_pattern") is None:
            raise SettingError(
                f"forebay run {name}: lines of text have no field with the time: name its part of a line, "
                "for example --time at --set 'source.line_pattern=(?P<at>\\S+) (?P<text>.*)'"
            )
        found = _fields_with_times(read, base)
        fields = " or ".join(f"--time {shlex.quote(field)}" for field in found) or "--time FIELD"
        raise SettingError(f"forebay run {name}: name the field with the time: {fields}")
    return parse_spec(document, base=base, name=f"run {name}", given=given)


def _fields_with_times(settings: Mapping[str, Any], base: Path) -> list[str]:
    from forebay.connectors.event_time import EventTime

    try:
        source = TypeAdapter[SourceSettings](Source).validate_python(settings, context={"base": base})
        record = next(source.first_records(), None)
    except (ValidationError, SettingError, OSError):
        return []
    fields = record.fields if isinstance(record, Event) else {}
    found: list[str] = []
    for name in fields:
        with suppress(MalformedRecord):
            EventTime(name).of(fields)
            found.append(name)
    return found


def source_settings(source: str, option: str = "--source") -> dict[str, Any]:
    """Settings of the source that `option` names. Blocks on the file system. Raises `SettingError`."""
    from forebay.connectors.files.listing import data_files
    from forebay.connectors.files.unpack import data_suffix

    if source in SOURCES:
        return dict(SOURCES[source])
    topic = TOPIC.fullmatch(source)
    if topic is not None:
        return {"type": "kafka", "bootstrap": topic["bootstrap"], "topics": [topic["topic"]]}
    path = Path(source)
    expected = f"expected a file or folder, one of {', '.join(SOURCES)}, or {TOPIC_FORM}"
    if re.match(r"[a-z][a-z0-9]*://", source):
        fix = "" if source.startswith("kafka:") else "; download the file first"
        raise SettingError(f"{option}: {expected}, found {source[:200]!r}{fix}")
    try:
        if not path.exists():
            raise SettingError(f"{option}: there is no {path}; {expected}{suggestion(source, SOURCES)}")
        if not (path.is_file() or path.is_dir()):
            raise SettingError(f"{option}: expected a file or a folder, found {path}, which is neither")
    except OSError as error:
        raise SettingError(f"{option}: {path!s:.200} cannot be read: {error.strerror}") from error
    files = data_files(path)
    kinds = {str(FILES[suffix]): file for file in files if (suffix := data_suffix(file)) in FILES}
    if len(kinds) != 1:
        found = " and ".join(map(str, kinds.values())) or (path if files else f"no file in {path}")
        fix = "" if kinds or not files else _fix_of(files[0])
        raise SettingError(
            f"{option}: expected files of one kind whose names end in {', '.join(FILES)}, found {found}{fix}"
        )
    [file] = kinds.values()
    return {**FILES[data_suffix(file)], "path": str(path.resolve())}


def _fix_of(file: Path) -> str:
    """What to do with a `file` whose name does not end in one of `FILES`."""
    from forebay.connectors.files.unpack import PACKED_SUFFIXES, UNREADABLE, data_suffix, why_foreign

    try:
        if (foreign := why_foreign(file)) is not None:
            return f": {foreign}"
    except UNREADABLE as error:
        return f": {error}"
    if data_suffix(file) in PACKED_SUFFIXES:
        return f"; name it after its content, such as {file.stem}.jsonl{file.suffix}"
    return f"; if it has such content, name it so: {file.name}.jsonl or {file.name}.txt"


def guesses_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Guess a source's encoding and delimiter from its first bytes, if they differ from `settings`. Blocks.

    Only for commands that do not resume: another guess would read the rest of a file differently.
    """
    from forebay.connectors.files.guess import guessed_settings
    from forebay.connectors.files.listing import data_files
    from forebay.connectors.files.unpack import data_suffix

    if "path" not in settings:
        return {}
    files = [file for file in data_files(Path(settings["path"])) if data_suffix(file) in FILES]
    found = guessed_settings(files, settings["type"])
    return {key: value for key, value in found.items() if key not in settings}


def _timed(source: dict[str, Any], time: str | None) -> dict[str, Any]:
    if time is not None and source["type"] == "generator":
        raise SettingError("--time: expected none with the generator, whose events have times")
    return source if time is None else {**source, "time": time}
