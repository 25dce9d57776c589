"""Ready pipelines: `forebay run NAME --source …` without a pipeline file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from forebay.apps.summaries.page import page as summaries_page
from forebay.apps.topics.page import topics_page
from forebay.apps.trends.page import trends_page
from forebay.config.load import parse_spec
from forebay.config.overrides import set_values
from forebay.config.spec import PipelineSpec
from forebay.documents.load import known_paths, suggestion
from forebay.errors import SettingError

Page = Callable[[Iterable[bytes]], str]
"""Makes a self-contained HTML page of the JSON lines of an application's results."""
SOURCES: dict[str, dict[str, Any]] = {
    "wikimedia": {"type": "sse", "preset": "wikimedia"},
    "jetstream": {"type": "websocket", "preset": "jetstream"},
    "generator": {"type": "generator"},
}
KINDS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


@dataclass(frozen=True, slots=True)
class Preset:
    """A pipeline's settings but for its source and its sink. `page`: what is made of the results at the
    end. `context_tokens`: the context that a local engine is given for it."""

    document: Mapping[str, Any]
    page: Page | None = None
    context_tokens: int = 2048


READY: dict[str, Preset] = {
    "sessions": Preset(
        {"application": {"type": "sessions"}, "key": "{{ user }}", "routing": "session_affinity"}
    ),
    "summary": Preset(
        {"application": {"type": "summary"}, "key": "{{ channel }}", "event_time": {}, "timeout_s": 120.0},
        page=summaries_page,
        context_tokens=8192,
    ),
    "topics": Preset({"application": {"type": "topics"}, "timeout_s": 120.0}, page=topics_page),
    "trends": Preset({"application": {"type": "trends"}, "timeout_s": 120.0}, page=trends_page),
}


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

    Raises `SettingError` where a wish cannot be met; relative paths count from the working directory.
    """
    document: dict[str, Any] = {
        **orjson.loads(orjson.dumps(dict(READY[name].document))),
        "name": name,
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
