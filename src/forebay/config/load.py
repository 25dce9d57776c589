"""From a pipeline file to a checked `PipelineSpec`, or to one `SettingError` that lists every mistake."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.config.spec import PipelineSpec
from forebay.documents.load import Where, check_document, read_document


def load_spec(path: str | Path) -> PipelineSpec:
    """Read and check the pipeline file at `path`; blocks on the file system.

    Relative paths in it count from its folder. Raises `SettingError` with one line per mistake:
    `file:line: key.path: what was expected, what was found`.
    """
    value, lines = read_document(path, "pipeline")
    return parse_spec(value, base=Path(path).resolve().parent, name=str(Path(path)), lines=lines)


def parse_spec(
    data: Any,
    *,
    base: Path | None = None,
    name: str = "pipeline",
    lines: Mapping[Where, int] | None = None,
) -> PipelineSpec:
    """Check `data`, the value of a pipeline file. Relative paths count from `base`, if that is given."""
    return check_document(PipelineSpec, data, what="pipeline", base=base, name=name, lines=lines)
