"""A file with Flink's classes that JVMs map into memory. They start with two thirds of the processor time."""

from __future__ import annotations

import hashlib
import io
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
from typing import IO

from forebay.errors import SettingError
from forebay.files import locked, private_folder
from forebay.processes import own_name, parent_death_signal

CLASSES = Path(__file__).with_name("classes.txt.xz")
DUMP_TIMEOUT_S = 300.0
UNUSED_S = 7 * 24 * 3600.0
ARCHIVES = "flink-*.jsa"
JARS = "flink-*.jar"
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
        for pattern, most_s in (("*.tmp", DUMP_TIMEOUT_S), (ARCHIVES, UNUSED_S), (JARS, UNUSED_S)):
            for left in self.folder.glob(pattern):
                with suppress(OSError):
                    stat = left.stat()
                    if time.time() - max(stat.st_atime, stat.st_mtime) > most_s:
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


DIST = "flink-dist-"
RPC = "flink-rpc-akka.jar"
RPC_SERVICE = "META-INF/services/org.apache.flink.runtime.rpc.RpcSystem"
LOADER = "flink-table-planner-loader-"
PLANNER = "flink-table-planner.jar"
SCALA = "flink-scala_"
TAIL_BYTES = 64 << 10


def with_rpc(classpath: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Unpack Flink's RPC system into `folder`. Raises `SettingError` if others may write there.

    Otherwise each JVM unpacks it (24 MB) and loads its classes without an archive. The first jar named `RPC`
    on the class path then only names the system; its classes are on the class path.
    """
    private_folder(folder.absolute())
    unpacked = (_unpacked(path, DIST, RPC, folder) for path in classpath)
    if (rpc := next(filter(None, unpacked), None)) is None:
        return tuple(classpath)
    name = Path(rpc).with_name(f"{Path(rpc).stem}-name.jar")
    try:
        if not _is_used(name):
            with zipfile.ZipFile(rpc) as jar:
                service = jar.read(RPC_SERVICE)
            _write(name, io.BytesIO(_jar(RPC, _jar(RPC_SERVICE, service))))
    except (OSError, KeyError, zipfile.BadZipFile):
        return tuple(classpath)
    return str(name), *classpath, rpc


def with_planner(classpath: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Unpack the planner into `folder`. Raises `SettingError` if others may write there."""
    private_folder(folder.absolute())
    return tuple(_unpacked(path, LOADER, PLANNER, folder) or path for path in classpath)


def without_planner(classpath: Sequence[str]) -> tuple[str, ...]:
    return tuple(path for path in classpath if not Path(path).name.startswith((LOADER, SCALA)))


def _unpacked(path: str, prefix: str, name: str, folder: Path) -> str | None:
    if not Path(path).name.startswith(prefix):
        return None
    with suppress(OSError, KeyError, zipfile.BadZipFile):
        # Reading the entries of `DIST` for a checksum takes a quarter of a second.
        stem = f"{Path(name).stem}-{_identity(path)}"
        for jar in folder.glob(f"{stem}-*.jar"):
            if jar.stem == f"{stem}-{jar.stat().st_size}" and _is_used(jar):
                return str(jar.resolve())
        with zipfile.ZipFile(path) as outer, outer.open(name) as inner:
            jar = folder / f"{stem}-{outer.getinfo(name).file_size}.jar"
            _write(jar, inner)
        return str(jar.resolve())
    return None


def _is_used(jar: Path) -> bool:
    if not jar.is_file():
        return False
    with suppress(OSError):
        os.utime(jar, ns=(time.time_ns(), jar.stat().st_mtime_ns))
    return True


def _identity(jar: str) -> str:
    with open(jar, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        return hashlib.blake2b(file.read(), digest_size=8, key=str(size).encode()).hexdigest()


def _write(path: Path, source: IO[bytes]) -> None:
    written = path.with_suffix(f".{own_name()}.tmp")
    try:
        with written.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def _jar(name: str, data: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as jar:
        jar.writestr(zipfile.ZipInfo(name), data)
    return written.getvalue()
