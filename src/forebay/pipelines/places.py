"""The places that a pipeline reads and writes, looked at before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

from forebay.errors import SettingError
from forebay.pipelines.spec import JsonlSink, PipelineSpec


def check_places(spec: PipelineSpec) -> None:
    """Raise `SettingError` where a place that the pipeline reads cannot be read, or one that it writes to
    cannot be written; directories to write to are made."""
    read = getattr(spec.source, "path", None)
    if read is not None:
        _check_readable(Path(read))
    written = {"checkpoint.dir": Path(spec.checkpoint.dir), "dead_letters.path": Path(spec.dead_letters.path)}
    if isinstance(spec.sink, JsonlSink):
        written["sink.path"] = Path(spec.sink.path)
    if spec.journal is not None:
        written["journal.path"] = Path(spec.journal.path).parent
    for key, folder in written.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(f"{key}: {folder} cannot be made: {error.strerror}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise SettingError(f"{key}: {folder} cannot be written to: no permission")


def _check_readable(path: Path) -> None:
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            with path.open("rb") as file:
                file.read(1)
    except OSError as error:
        raise SettingError(f"source.path: {path} cannot be read: {error.strerror}") from None
