"""The places that a pipeline reads and writes, and its secrets, looked at before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from forebay.connectors.feed import header_values
from forebay.connectors.files import line_reader
from forebay.errors import SettingError
from forebay.pipelines.sources import DeadLetterSource, FeedSource, FileSource
from forebay.pipelines.spec import PipelineSpec
from forebay.pipelines.streams import files_of
from forebay.settings import read_secret


def check_places(spec: PipelineSpec) -> None:
    """Raise `SettingError` where a place that the pipeline reads cannot be read, or not as the source says,
    or one that it writes to cannot be written; directories to write to are made."""
    source = spec.source
    if isinstance(source, FileSource | DeadLetterSource):
        _check_readable(Path(source.path))
        _found("source", lambda: line_reader(files_of(source)))
    written = {key: Path(path) for key, path in spec.directories().items()}
    written["checkpoint.dir"] = Path(spec.checkpoint.dir)
    if spec.journal is not None:
        written["journal.path"] = Path(spec.journal.path).parent
    for key, folder in written.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(f"{key}: {folder} cannot be made: {error.strerror}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise SettingError(f"{key}: {folder} cannot be written to: no permission")


def check_secrets(spec: PipelineSpec, *, here: bool) -> None:
    """Raise `SettingError` where a secret that the pipeline names is missing.

    The engine's key is needed by the command too, a feed's headers only where its tasks run: `here`, or on
    the machines of a cluster.
    """
    key = spec.engine.secret()
    if key is not None:
        _found("engine.api_key", lambda: read_secret(key))
    source = spec.source
    if here and isinstance(source, FeedSource):
        _found("source.headers", lambda: header_values(source.header_values()))


def _found(key: str, read: Callable[[], object]) -> None:
    try:
        read()
    except SettingError as error:
        raise SettingError(f"{key}: {error}") from None


def _check_readable(path: Path) -> None:
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            with path.open("rb") as file:
                file.read(1)
    except OSError as error:
        raise SettingError(f"source.path: {path} cannot be read: {error.strerror}") from None
