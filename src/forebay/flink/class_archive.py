"""Flink's classes as the JVM keeps them in memory, in a file that the next JVM maps: it starts in less time.

A JVM of pip's comes without such an archive, not even of its own classes, and a job of Flink's loads 12,000.
A run lists what it loads; from the list an archive is made beside the run, at the lowest priority.
A JVM takes an archive only where it fits its class path, down to the times of the jars, and does without
where it does not.
"""

from __future__ import annotations

import hashlib
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

from forebay.files import private_folder
from forebay.processes import own_name, parent_death_signal

LEAST_CLASSES = 5000
"""A JVM that has run a job has loaded more."""
DUMP_TIMEOUT_S = 300.0
LISTS_CLASSES = "-XX:DumpLoadedClassList"
"""The option of a JVM for which there is no archive yet."""
UNUSED_S = 7 * 24 * 3600.0
"""An archive that no JVM has taken for so long is removed when another is made: it has 100 MB or more."""
ARCHIVES = "flink-*.jsa"
"""What the names of archives have in common."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for JVMs that run `java` with the class path `classpath`; it lies in `folder`, and lists of
    classes in `lists`, where what is old is cleared away by others."""

    folder: Path
    lists: Path
    java: Path
    classpath: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The file of the archive; another one for another Java or other jars."""
        digest = hashlib.blake2b(digest_size=8)
        for jar in (str(self.java.parents[1] / "release"), *self.classpath):
            stat = Path(jar).stat() if Path(jar).exists() else None
            digest.update(repr((jar, stat and (stat.st_size, stat.st_mtime_ns))).encode())
        return self.folder / f"flink-{digest.hexdigest()}.jsa"

    def options(self) -> tuple[str, ...]:
        """What to start the JVM with: it takes the archive where there is one, and else lists its classes.

        Raises `SettingError` where the folder cannot be made private: code comes from it.
        """
        private_folder(self.folder.absolute())
        if self.path.is_file():
            with suppress(OSError):
                # So that it can be seen which archives nobody uses any more.
                os.utime(self.path)
            return (f"-XX:SharedArchiveFile={self.path}",)
        return (f"{LISTS_CLASSES}={self._list()}",)

    def make(self, environment: Mapping[str, str]) -> bool:
        """Make the archive of what the JVM that this process has started has loaded until now; blocks for
        half a minute or longer. The process that makes it gets `environment`. Returns whether it is there
        now; where it cannot be made, a later run tries.
        """
        made = self.path
        if made.is_file():
            return True
        listed, written = self._list(), made.with_suffix(f".{own_name()}.tmp")
        try:
            # The running JVM goes on to add to its list: the last line may not be whole.
            names = listed.read_text().splitlines()[:-1]
            if len(names) < LEAST_CLASSES:
                return False
            whole = listed.with_suffix(".whole")
            whole.write_text("\n".join(names) + "\n")
            self._clear()
            subprocess.run(
                self._dump(whole, written),
                check=True,
                timeout=DUMP_TIMEOUT_S,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=_before_java(),
            )
            written.replace(made)
        except (OSError, ValueError, subprocess.SubprocessError):
            return False
        finally:
            with suppress(OSError):
                written.unlink()
        return True

    def _clear(self) -> None:
        """Remove what runs have left that were killed while they wrote, and archives that no JVM has taken
        for long: each version of Flink, of Java and of a connector has its own."""
        for pattern, most_s in (("*.tmp", DUMP_TIMEOUT_S), (ARCHIVES, UNUSED_S)):
            for left in self.folder.glob(pattern):
                with suppress(OSError):
                    if time.time() - left.stat().st_mtime > most_s:
                        left.unlink()

    def _dump(self, listed: Path, archive: Path) -> Sequence[str]:
        return (
            str(self.java),
            "-XX:+UseSerialGC",
            "-Xshare:dump",
            f"-XX:SharedClassListFile={listed}",
            f"-XX:SharedArchiveFile={archive}",
            "-cp",
            os.pathsep.join(self.classpath),
        )

    def _list(self) -> Path:
        return self.lists / f"flink-classes-{own_name()}.list"


def _before_java() -> Callable[[], None]:
    end_with_us = parent_death_signal(signal.SIGKILL)

    def before() -> None:
        os.nice(19)
        end_with_us()

    return before


LOADER = "flink-table-planner-loader-"
PLANNER = "flink-table-planner.jar"
"""The name of the planner inside its loader."""
SCALA = "flink-scala_"
"""How the name of the jar begins that only the planner needs."""


def with_planner(classpath: Sequence[str], folder: Path) -> tuple[str, ...]:
    """`classpath` with the planner in the place of its loader; it is unpacked into `folder` once.

    The class path as it is where there is no loader in it, or none that holds a planner, or where `folder`
    cannot be written. Raises `SettingError` where `folder` cannot be made private: code comes from it.
    """
    private_folder(folder.absolute())
    return tuple(_planner_in(path, folder) or path for path in classpath)


def without_planner(classpath: Sequence[str]) -> tuple[str, ...]:
    """`classpath` for a JVM that plans no tables: it starts in less time and memory, and its archive of
    classes is half as large."""
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
        return str(planner.absolute())
    return None
