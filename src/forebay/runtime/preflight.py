"""The places that a pipeline reads and writes, and its secrets, looked at before anything starts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from forebay.config.kafka import KafkaAccess, KafkaSource
from forebay.config.sources import DeadLetterSource, FeedSource, FileSource
from forebay.config.spec import PipelineSpec
from forebay.connectors.feed import header_values
from forebay.connectors.files import line_reader
from forebay.connectors.kafka.registry import registry_auth, require_avro
from forebay.errors import SettingError
from forebay.runtime.job_graph import files_of
from forebay.settings import SecretRef, read_secret


def check_paths(spec: PipelineSpec, *, make: bool = True) -> None:
    """Raise `SettingError` where a place that the pipeline reads cannot be read, or not as the source says,
    or one that it writes to cannot be written; directories to write to are made, unless not `make`."""
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
            if make:
                folder.mkdir(parents=True, exist_ok=True)
            place = folder if make else _nearest(folder)
        except OSError as error:
            raise SettingError(f"{key}: {folder} cannot be made: {error.strerror}") from None
        if not os.access(place, os.W_OK | os.X_OK):
            raise SettingError(f"{key}: {folder} cannot be written to: no permission")


def check_secrets(spec: PipelineSpec, *, here: bool) -> None:
    """Raise `SettingError` where a secret that the pipeline names is missing.

    The engine's key is needed by the command too, a feed's headers and a registry's secret only where tasks
    run: `here`, or on the machines of a cluster. Raises `SetupError` where a registry's client is missing.
    """
    key = spec.engine.secret()
    if key is not None:
        _found("engine.api_key", lambda: read_secret(key))
    source = spec.source
    if here and isinstance(source, FeedSource):
        _found("source.headers", lambda: header_values(source.header_values()))
    if here:
        for where, access in _kafkas(spec):
            for name, secret in access.secrets.items():
                _found(f"{where}.secrets.{name}", partial(_check_kafka, name, secret.ref()))
    if here and isinstance(source, KafkaSource) and source.registry is not None:
        require_avro()
        registry = source.registry.registry()
        _found("source.registry.auth", lambda: registry_auth(registry))


def _nearest(folder: Path) -> Path:
    """The folder in which `folder` would be made, itself where it is there."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return there


def _found(key: str, read: Callable[[], object]) -> None:
    try:
        read()
    except SettingError as error:
        raise SettingError(f"{key}: {error}") from None


def _kafkas(spec: PipelineSpec) -> Iterator[tuple[str, KafkaAccess]]:
    if isinstance(spec.source, KafkaSource):
        yield "source", spec.source
    yield from spec.topics().items()


def _check_kafka(name: str, ref: SecretRef) -> None:
    """A missing secret would reach Kafka's client as the text of its reference."""
    read_secret(ref)
    if name.endswith("password") and ref.file is not None and Path(ref.file).read_bytes().endswith(b"\n"):
        raise SettingError(
            f"secret file {ref.file} ends with a line break, which Kafka's client takes for a part of the "
            f"password; remove it"
        )


def _check_readable(path: Path) -> None:
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            with path.open("rb") as file:
                file.read(1)
    except OSError as error:
        raise SettingError(f"source.path: {path} cannot be read: {error.strerror}") from None
