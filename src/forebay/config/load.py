"""From a pipeline file to a checked `PipelineSpec`, or to one `SettingError` that lists every mistake.

With `--set key=value`, the command line gives values over those of the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from forebay.config.spec import PipelineSpec
from forebay.documents.load import Where, check_document, describe, known_paths, read_document, suggestion
from forebay.documents.yaml import MAX_DEPTH
from forebay.errors import SettingError

MAX_CHARS = 65_536
DOTTED = frozenset(("flink", "properties"))
"""Mappings whose own keys hold dots: what stands behind them is one key."""


def load_spec(path: str | Path, settings: Sequence[str] = ()) -> PipelineSpec:
    """Read and check the pipeline file at `path`; blocks on the file system.

    `settings` are `path.to.key=value`, which win over what the file says. Relative paths in both count from
    the file's folder. Raises `SettingError` with one line per mistake:
    `file:line: key.path: what was expected, what was found`.
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
    """Check `data`, the value of a pipeline file. Relative paths count from `base`, if that is given; `given`
    are the paths of what is not the file's but the command line's."""
    return check_document(PipelineSpec, data, what="pipeline", base=base, name=name, lines=lines, given=given)


def set_values(document: dict[str, Any], settings: Iterable[str], known: Iterable[Where]) -> list[Where]:
    """Put each `path.to.key=value` of `settings` into `document`; the last one wins. Returns their paths.

    A value is JSON where it can be read as such, and a text otherwise. `known` are the paths that there are,
    for the message where a setting has no value. Raises `SettingError`.
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
    at = document
    for depth, step in enumerate(above):
        inner = at.get(step)
        if inner is None:
            inner = at[step] = {}
        if (*path[:depth], step) == ("engine",) and isinstance(inner, str | list):
            inner = at[step] = {"url": inner}
        if not isinstance(inner, dict):
            place = ".".join(path[: depth + 1])
            raise SettingError(
                f"--set: {name} lies within a value that is no mapping: {place} is {describe(inner)}; "
                f"set {place} as a whole"
            )
        at = inner
    try:
        at[last] = orjson.loads(value)
    except orjson.JSONDecodeError:
        at[last] = value
    return tuple(path)


def _path(name: str) -> list[str]:
    steps = name.split(".")
    for at, step in enumerate(steps[:-1]):
        if step in DOTTED:
            return [*steps[: at + 1], ".".join(steps[at + 1 :])]
    return steps


def _meant(name: str, known: Iterable[Where]) -> str:
    """The path that `name` may stand for, as the end of a message."""
    if not re.fullmatch(r"[\w.-]{1,80}", name):
        return ""
    paths = {".".join(map(str, path)): path for path in known}
    if name in paths:
        return f"; write {name}=VALUE"
    same = [path for path in paths if path.rpartition(".")[2] == name]
    return f"; did you mean {same[0]}=VALUE?" if len(same) == 1 else suggestion(name, paths)
