"""Ready pipelines: `forebay run NAME --source …` without a pipeline file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from forebay.apps.registry import APPLICATIONS
from forebay.config.load import parse_spec, set_values
from forebay.config.spec import PipelineSpec
from forebay.documents.load import known_paths, suggestion
from forebay.errors import SettingError

SOURCES: dict[str, dict[str, Any]] = {
    "wikimedia": {"type": "sse", "preset": "wikimedia"},
    "jetstream": {"type": "websocket", "preset": "jetstream"},
    "generator": {"type": "generator"},
}
KINDS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


@dataclass(frozen=True, slots=True)
class ApplicationOptions:
    """What the command line says. `source`: a file or folder, or one of `SOURCES`. `key` and `time` name
    fields; `settings` are `path.to.key=value`, which win."""

    source: str
    out: Path
    key: str | None = None
    time: str | None = None
    settings: Sequence[str] = field(default=())


def preset_spec(name: str, wish: ApplicationOptions) -> PipelineSpec:
    """The pipeline of the application `name`. Its results, dead letters and state lie in `wish.out`.

    Raises `SettingError` where a wish cannot be met, and where there is no such application or it cannot be
    loaded; relative paths count from the working directory.
    """
    application = APPLICATIONS.find(name)
    if application is None:
        raise SettingError(
            f"there is no application {name[:80]!r}; expected {', '.join(APPLICATIONS.names())}"
        )
    document: dict[str, Any] = {
        **orjson.loads(orjson.dumps(dict(application.preset.document))),
        "name": name.replace("_", "-"),
        "application": {"type": name},
        "source": _source(wish),
        "sink": {"type": "jsonl", "path": "results"},
        "dead_letters": {"type": "jsonl", "path": "dead-letters"},
        "checkpoint": {"dir": "state"},
    }
    if wish.key is not None:
        document["key"] = "{{ " + wish.key + " }}"
    if wish.time is not None:
        document.setdefault("event_time", {})
    given = set_values(document, wish.settings, known_paths(PipelineSpec, document))
    return parse_spec(document, base=wish.out.resolve(), name=f"run {name}", given=given)


def _source(wish: ApplicationOptions) -> dict[str, Any]:
    if wish.source in SOURCES:
        return dict(SOURCES[wish.source])
    path = Path(wish.source)
    if not path.exists():
        raise SettingError(
            f"--source: there is no {path}; expected a file, or one of {', '.join(SOURCES)}"
            f"{suggestion(wish.source, SOURCES)}"
        )
    files = [path] if path.is_file() else sorted(path.iterdir())
    kinds = {KINDS[file.suffix] for file in files if file.suffix in KINDS}
    if len(kinds) != 1:
        raise SettingError(f"--source: expected .jsonl or .csv files, found {path}")
    timed = {} if wish.time is None else {"time": wish.time}
    return {"type": kinds.pop(), "path": str(path.resolve()), **timed}
