"""From a pipeline file to a checked `PipelineSpec`, or to one `SettingError` that lists every mistake."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from forebay.config.overrides import set_values
from forebay.config.spec import PipelineSpec
from forebay.documents.load import Where, check_document, known_paths, read_document


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
