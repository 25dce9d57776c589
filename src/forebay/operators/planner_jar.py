"""Flink's table planner on the class path itself, where an archive of classes can hold it.

Flink carries the planner as a jar in a jar, which each JVM unpacks anew and loads by a class loader of its
own: its classes are in no archive. Kafka's topics are tables, so every start of such a job would pay for it.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from forebay.private_folder import private_folder

LOADER = "flink-table-planner-loader-"
PLANNER = "flink-table-planner.jar"
"""The name of the planner inside its loader."""


def with_planner(classpath: Sequence[str], folder: Path) -> tuple[str, ...]:
    """`classpath` with the planner in the place of its loader; it is unpacked into `folder` once.

    The class path as it is where there is no loader in it, or none that holds a planner, or where `folder`
    cannot be written. Raises `SettingError` where `folder` cannot be made private: code comes from it.
    """
    private_folder(folder.absolute())
    return tuple(_planner_in(path, folder) or path for path in classpath)


def _planner_in(path: str, folder: Path) -> str | None:
    if not Path(path).name.startswith(LOADER):
        return None
    with suppress(OSError, KeyError, zipfile.BadZipFile), zipfile.ZipFile(path) as loader:
        entry = loader.getinfo(PLANNER)
        planner = folder / f"flink-table-planner-{entry.CRC:08x}-{entry.file_size}.jar"
        if not planner.is_file() or planner.stat().st_size != entry.file_size:
            written = planner.with_suffix(f".{os.getpid()}.tmp")
            with loader.open(entry) as source, written.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
            written.replace(planner)
        return str(planner.absolute())
    return None
