"""Writes `forebay/pipeline/flink_options.json`: the names of all options of the Flink installed.

`make flink-options` runs it. An option is a static field of type `ConfigOption` in a class of Flink's jars.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyflink
from pyflink.java_gateway import get_gateway
from pyflink.version import __version__ as flink_version

from forebay.pipeline.flink_options import DATA

MARK = b"org/apache/flink/configuration/ConfigOption"
STATIC = 0x0008
OF_TABLES = tuple(
    f"org.apache.flink.{name}."
    for name in ("connector", "formats", "table.factories", "table.connector", "table.catalog", "table.file")
)
"""Options of a table's WITH clause, not of a job."""
WITHOUT_DOTS = frozenset(("external-resources", "high-availability", "restart-strategy", "scheduler-mode"))
"""Other names without dots are parts of longer ones, such as those below `metrics.reporter`."""


def classes() -> Iterator[str]:
    """Names of the classes in Flink's jars that mention options."""
    home = Path(pyflink.__file__).parent
    for jar in (*sorted(home.glob("lib/flink-*.jar")), *home.glob("opt/flink-python-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.startswith("org/apache/flink/") and name.endswith(".class"):
                    path = name.removesuffix(".class").replace("/", ".")
                    if not path.startswith(OF_TABLES) and MARK in archive.read(name):
                        yield path


def options_of(jvm: Any, name: str) -> Iterator[Any]:
    """The options that a class defines; empty if the class cannot be loaded here."""
    loader = jvm.Thread.currentThread().getContextClassLoader()
    try:
        found = jvm.java.lang.Class.forName(name, False, loader)
        fields = list(found.getDeclaredFields())
    except Exception as error:
        print(f"left out: {name}: {str(error).splitlines()[-1][:100]}", file=sys.stderr)
        return
    for field in fields:
        if field.getModifiers() & STATIC and field.getType().getSimpleName() == "ConfigOption":
            try:
                field.setAccessible(True)
                yield field.get(None)
            except Exception as error:
                print(f"left out: {name}.{field.getName()}: {str(error)[:100]}", file=sys.stderr)


def main() -> None:
    jvm = get_gateway().jvm
    names: set[str] = set()
    maps: set[str] = set()
    for name in sorted(set(classes())):
        for option in options_of(jvm, name):
            if option is None:
                continue
            keys = [option.key(), *(key.getKey() for key in option.fallbackKeys())]
            keys = [key for key in keys if "." in key or key in WITHOUT_DOTS]
            names.update(keys)
            if _kind(jvm, option) == "Map":
                maps.update(keys)
    document = {"flink": flink_version, "options": sorted(names), "maps": sorted(maps)}
    DATA.write_text(json.dumps(document, indent=0, ensure_ascii=True) + "\n", encoding="utf-8")
    print(f"{len(names)} options of Flink {flink_version}, {len(maps)} of them maps: {DATA}")


def _kind(jvm: Any, option: Any) -> str:
    """The class of an option's values."""
    field = jvm.java.lang.Class.forName("org.apache.flink.configuration.ConfigOption").getDeclaredField(
        "clazz"
    )
    field.setAccessible(True)
    return str(field.get(option).getSimpleName())


if __name__ == "__main__":
    main()
