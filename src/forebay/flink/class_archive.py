"""A file with Flink's 12,000 classes as the JVM holds them in memory: JVMs map it, and start with two
thirds of the processor time."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import SettingError
from forebay.files import locked, private_folder
from forebay.processes import own_name, parent_death_signal

CLASSES = Path(__file__).with_name("classes.txt.xz")
"""What runs have loaded, written by `make flink-classes`."""
DUMP_TIMEOUT_S = 300.0
UNUSED_S = 7 * 24 * 3600.0
ARCHIVES = "flink-*.jsa"
LOCK = "archives.lock"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    folder: Path
    java: Path
    classpath: tuple[str, ...]

    @property
    def path(self) -> Path:
        digest = hashlib.blake2b(digest_size=8)
        for jar in (str(self.java.parents[1] / "release"), *self.classpath):
            stat = Path(jar).stat() if Path(jar).exists() else None
            digest.update(repr((jar, stat and (stat.st_size, stat.st_mtime_ns))).encode())
        return self.folder / f"flink-{digest.hexdigest()}.jsa"

    def options(self) -> tuple[str, ...]:
        """Raises `SettingError` if others may write to the archive."""
        private_folder(self.folder.absolute())
        return (f"-XX:SharedArchiveFile={self.path}",) if self._is_made() else ()

    def make(self, environment: Mapping[str, str]) -> bool:
        """Blocks for half a minute, at the lowest priority; whether it exists now."""
        try:
            private_folder(self.folder.absolute())
            with locked(self.folder / LOCK):
                if not self._is_made():
                    self._dump(environment)
                return True
        except (OSError, SettingError, subprocess.SubprocessError):
            return False

    def _is_made(self) -> bool:
        if not self.path.is_file():
            return False
        with suppress(OSError):
            # Marks it as used.
            os.utime(self.path)
        return True

    def _dump(self, environment: Mapping[str, str]) -> None:
        stem = f"{self.path.stem}.{own_name()}"
        listed, written = self.folder / f"{stem}.list.tmp", self.folder / f"{stem}.tmp"
        self._clear()
        try:
            listed.write_bytes(lzma.decompress(CLASSES.read_bytes()))
            subprocess.run(
                self._command(listed, written),
                check=True,
                timeout=DUMP_TIMEOUT_S,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=_before_java(),
            )
            written.replace(self.path)
        finally:
            for path in (listed, written):
                with suppress(OSError):
                    path.unlink()

    def _clear(self) -> None:
        for pattern, most_s in (("*.tmp", DUMP_TIMEOUT_S), (ARCHIVES, UNUSED_S)):
            for left in self.folder.glob(pattern):
                with suppress(OSError):
                    if time.time() - left.stat().st_mtime > most_s:
                        left.unlink()

    def _command(self, listed: Path, archive: Path) -> Sequence[str]:
        return (
            str(self.java),
            "-XX:+UseSerialGC",
            "-Xshare:dump",
            f"-XX:SharedClassListFile={listed}",
            f"-XX:SharedArchiveFile={archive}",
            "-cp",
            os.pathsep.join(self.classpath),
        )


def _before_java() -> Callable[[], None]:
    end_with_us = parent_death_signal(signal.SIGKILL)

    def before() -> None:
        os.nice(19)
        end_with_us()

    return before


LOADER = "flink-table-planner-loader-"
PLANNER = "flink-table-planner.jar"
SCALA = "flink-scala_"


def with_planner(classpath: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Unpack the planner into `folder`, instead of its loader. Raises `SettingError` if others may write
    there."""
    private_folder(folder.absolute())
    return tuple(_planner_in(path, folder) or path for path in classpath)


def without_planner(classpath: Sequence[str]) -> tuple[str, ...]:
    return tuple(path for path in classpath if not Path(path).name.startswith((LOADER, SCALA)))


def _planner_in(path: str, folder: Path) -> str | None:
    if not Path(path).name.startswith(LOADER):
        return None
    with suppress(OSError, KeyError, zipfile.BadZipFile), zipfile.ZipFile(path) as loader:
        entry = loader.getinfo(PLANNER)
        planner = folder / f"flink-table-planner-{entry.CRC:08x}-{entry.file_size}.jar"
        if not planner.is_file() or planner.stat().st_size != entry.file_size:
            written = planner.with_suffix(f".{own_name()}.tmp")
            with loader.open(entry) as source, written.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
            written.replace(planner)
        return str(planner.resolve())
    return None
