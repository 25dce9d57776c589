"""Flink's own connectors and file systems: jars that are fetched once, checked, and kept.

PyPI has no connectors for Flink. A jar comes from Maven Central, from a mirror of it, or from a folder, and
only the bytes whose checksum stands here are ever put in place, wherever they came from.
"""

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
"""Told the bytes that have come and the bytes of the whole."""


@dataclass(frozen=True, slots=True)
class Jar:
    """A connector, or a file system (`plugin`): its place below a Maven repository, and what its bytes are.

    A plugin is loaded by Flink itself, from a folder of its own below `plugins`, and is on no class path.
    """

    connector: str
    path: str
    size: int
    sha256: str
    plugin: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def folder(self, connectors: Path) -> Path:
        """Where it lies, in the folder of all connectors."""
        return plugins(connectors) / self.connector if self.plugin else connectors


def plugins(connectors: Path) -> Path:
    """The folder of Flink's plugins, each in a folder of its own, in that of all connectors."""
    return connectors / "plugins"


KAFKA = Jar(
    connector="kafka",
    path="org/apache/flink/flink-sql-connector-kafka/5.0.0-2.2/flink-sql-connector-kafka-5.0.0-2.2.jar",
    size=10_666_527,
    sha256="5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616",
)
"""The newest connector for Flink 2; built for 2.2, and it runs on 2.3."""

S3 = Jar(
    connector="s3",
    path="org/apache/flink/flink-s3-fs-hadoop/2.3.0/flink-s3-fs-hadoop-2.3.0.jar",
    size=31_724_253,
    sha256="5a3de2daac49e9df1783367391f994dace3bfa18c168b45c3d4563decca7d3d0",
    plugin=True,
)
"""Flink's file system for S3. (With flink-s3-fs-native 2.3.0, files of results were lost in kills.)"""

JARS = {jar.connector: jar for jar in (KAFKA, S3)}


def installed_jar(jar: Jar, folder: Path) -> Path:
    """Where `jar` lies in `folder`. Raises `SettingError` with the command that puts it there, and where
    others may write to the folder or the one around it.

    Looks at the size alone: what was put in place was checked.
    """
    place = jar.folder(folder) / jar.name
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
    """Those for the class path that are installed in `folder`, for JVMs that start before it is known what a
    job needs."""
    found = []
    for jar in JARS.values():
        if jar.plugin:
            continue
        with suppress(SettingError):
            found.append(installed_jar(jar, folder))
    return tuple(found)


def install_jar(jar: Jar, folder: Path, origin: str = MAVEN_CENTRAL, on_bytes: OnBytes | None = None) -> Path:
    """Put `jar` into `folder` and return its place; does nothing where it is there.

    `origin` is the URL of a Maven repository, or a folder that holds the jar (by itself, or in a repository's
    layout). Blocks on the network; several processes may do it at once. Raises `SettingError` where the
    origin does not have the jar or has another, and `LaunchError` where it could not be read.
    """
    place = jar.folder(folder) / jar.name
    if _is(place, jar):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    # Under its name only when it is whole: a reader never meets half a jar.
    descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=f".{jar.name}-")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out, _opened(jar, origin) as source:
            _copy(jar, source, out, on_bytes or (lambda _come, _whole: None), origin)
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
    """An origin for people: without the user and password that a URL may hold."""
    return re.sub(r"//[^/@]*@", "//…@", origin)


@contextmanager
def _opened(jar: Jar, origin: str) -> Iterator[BinaryIO]:
    if urlsplit(origin).scheme in ("http", "https"):
        url = f"{origin.rstrip('/')}/{jar.path}"
        try:
            # The scheme is one of the two above.
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
    found, come = hashlib.sha256(), 0
    while chunk := source.read(min(CHUNK_BYTES, jar.size + 1 - come)):
        come += len(chunk)
        found.update(chunk)
        out.write(chunk)
        on_bytes(min(come, jar.size), jar.size)
    if come < jar.size:
        raise LaunchError(
            f"{jar.name} from {shown(origin)} ended after {come} of {jar.size} bytes; try again"
        )
    if found.hexdigest() != jar.sha256:
        raise SettingError(
            f"{jar.name} from {shown(origin)} is not the jar that this Forebay knows: its SHA-256 is not "
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
