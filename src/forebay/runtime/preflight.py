"""The places that a pipeline reads and writes, and its secrets, looked at before anything starts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from forebay.config.spec import PipelineSpec
from forebay.errors import SettingError
from forebay.settings import read_secret


def check_paths(spec: PipelineSpec, *, make: bool = True) -> None:
    """Raise `SettingError` where a place that the pipeline reads cannot be read, or not as the source says,
    or one that it writes to cannot be written; directories to write to are made, unless not `make`."""
    for key, connector in {"source": spec.source, **spec.sinks()}.items():
        connector.check(key)
    written = {key: Path(path) for key, path in spec.written().items()}
    written["checkpoint.dir"] = Path(spec.checkpoint.dir)
    if spec.journal is not None:
        written["journal.path"] = Path(spec.journal.path).parent
    for key, folder in written.items():
        try:
            if make:
                folder.mkdir(parents=True, exist_ok=True)
            place = folder if make else _nearest(folder)
        except OSError as error:
            raise SettingError(f"{key}: {folder} cannot be made: {error.strerror}") from None
        if not os.access(place, os.W_OK | os.X_OK):
            raise SettingError(f"{key}: {folder} cannot be written to: no permission")


def check_secrets(spec: PipelineSpec, *, here: bool) -> None:
    """Raise `SettingError` where a secret that the pipeline names is missing.

    The engine's key is needed by the command too, those of sources and sinks only where tasks run: `here`,
    or on the machines of a cluster. Raises `SetupError` where a registry's client is missing.
    """
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
    """The folder in which `folder` would be made, itself where it is there."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return there
