"""Download Flink connectors and file systems, which PyPI lacks; jars are verified and kept."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from forebay.errors import LaunchError, SettingError
from forebay.files import check_nobody_else_writes

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
READ_TIMEOUT_S = 60.0
CHUNK_BYTES = 1 << 18

OnBytes = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Jar:
    """`path`: in a Maven repository. Flink loads a `plugin` from its own folder."""

    connector: str
    path: str
    size: int
    sha256: str
    plugin: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def folder(self, connectors: Path) -> Path:
        return plugins(connectors) / self.connector if self.plugin else connectors

    def place(self, connectors: Path) -> Path:
        return self.folder(connectors) / self.name


def plugins(connectors: Path) -> Path:
    return connectors / "plugins"


KAFKA = Jar(
    connector="kafka",
    path="org/apache/flink/flink-sql-connector-kafka/5.0.0-2.2/flink-sql-connector-kafka-5.0.0-2.2.jar",
    size=10_666_527,
    sha256="5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616",
)
"""The newest connector for Flink 2; built for 2.2, also runs on 2.3."""

S3 = Jar(
    connector="s3",
    path="org/apache/flink/flink-s3-fs-hadoop/2.3.0/flink-s3-fs-hadoop-2.3.0.jar",
    size=31_724_253,
    sha256="5a3de2daac49e9df1783367391f994dace3bfa18c168b45c3d4563decca7d3d0",
    plugin=True,
)
"""With flink-s3-fs-native 2.3.0, result files were lost when processes were killed."""

JARS = {jar.connector: jar for jar in (KAFKA, S3)}


def installed_jar(jar: Jar, folder: Path) -> Path:
    """Raises `SettingError` if the jar is missing, or others may write to its folders. Checks only the
    size."""
    place = jar.place(folder)
    for where in {folder.parent, folder, place.parent.parent, place.parent}:
        check_nobody_else_writes(where)
    with suppress(OSError):
        if place.stat().st_size == jar.size:
            return place
    raise SettingError(
        f"the {jar.connector} connector is not installed ({place} is missing); "
        f"run: forebay connectors install {jar.connector}"
    )


def installed_jars(folder: Path) -> tuple[Path, ...]:
    """For JVMs that start before the job's needs are known."""
    found = []
    for jar in JARS.values():
        if jar.plugin:
            continue
        with suppress(SettingError):
            found.append(installed_jar(jar, folder))
    return tuple(found)


def install_jar(jar: Jar, folder: Path, origin: str = MAVEN_CENTRAL, on_bytes: OnBytes | None = None) -> Path:
    """`origin`: URL of a Maven repository, or a folder.

    Blocks; safe to run in several processes. Raises `SettingError` if the origin lacks the jar, or
    `LaunchError`.
    """
    place = jar.place(folder)
    if _is(place, jar):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when complete, so that readers never see half a jar.
    descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=f".{jar.name}-")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out, _opened(jar, origin) as source:
            _copy(jar, source, out, on_bytes or (lambda _copied, _whole: None), origin)
        part.chmod(0o644)
        part.replace(place)
    except (HTTPException, TimeoutError, OSError) as error:
        raise LaunchError(
            f"{jar.name} could not be fetched from {shown(origin)}: {error}; try again"
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return place


def shown(origin: str) -> str:
    return re.sub(r"//[^/@]*@", "//…@", origin)


@contextmanager
def _opened(jar: Jar, origin: str) -> Iterator[BinaryIO]:
    if urlsplit(origin).scheme in ("http", "https"):
        url = f"{origin.rstrip('/')}/{jar.path}"
        try:
            # The scheme was checked above.
            with urlopen(Request(url), timeout=READ_TIMEOUT_S) as answer:
                yield answer
        except HTTPError as error:
            raise SettingError(
                f"{shown(url)} answered {error.code}; name a Maven repository that has it, or a folder, "
                f"with --from"
            ) from None
        except URLError as error:
            raise LaunchError(
                f"{shown(url)} cannot be reached: {error.reason}; name a mirror of Maven Central or a folder "
                f"that holds {jar.name} with --from"
            ) from None
        return
    for path in (Path(origin) / jar.name, Path(origin) / jar.path):
        if path.is_file():
            with path.open("rb") as file:
                yield file
            return
    raise SettingError(f"the folder {origin} holds no {jar.name}, neither by itself nor as {jar.path}")


def _copy(jar: Jar, source: BinaryIO, out: BinaryIO, on_bytes: OnBytes, origin: str) -> None:
    found, copied = hashlib.sha256(), 0
    while chunk := source.read(min(CHUNK_BYTES, jar.size + 1 - copied)):
        copied += len(chunk)
        found.update(chunk)
        out.write(chunk)
        on_bytes(min(copied, jar.size), jar.size)
    if copied < jar.size:
        raise LaunchError(
            f"{jar.name} from {shown(origin)} ended after {copied} of {jar.size} bytes; try again"
        )
    if found.hexdigest() != jar.sha256:
        raise SettingError(
            f"{jar.name} from {shown(origin)} is not the expected jar: its SHA-256 is not "
            f"{jar.sha256}; nothing was installed"
        )


def _is(place: Path, jar: Jar) -> bool:
    try:
        if place.stat().st_size != jar.size:
            return False
        with place.open("rb") as file:
            found = hashlib.sha256()
            while chunk := file.read(CHUNK_BYTES):
                found.update(chunk)
    except OSError:
        return False
    return found.hexdigest() == jar.sha256
