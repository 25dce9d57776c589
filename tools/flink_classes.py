"""Writes `forebay/flink/classes.txt.xz`: the classes that JVMs of Flink have loaded, from lists in a folder.

`make flink-classes` runs it after some jobs. Classes of other loaders are left out.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

from forebay.flink.class_archive import CLASSES
from forebay.flink.jvm import GATEWAY_CLASS


def main(folder: str) -> None:
    found: set[str] = set()
    for path in Path(folder).glob("*.list"):
        lines = path.read_text().splitlines()
        if not any(line.startswith(GATEWAY_CLASS.replace(".", "/")) for line in lines):
            continue  # A Kafka broker.
        for line in lines:
            if line and not line.startswith("#") and "source: " not in line:
                # Numbers that follow are for classes with a source.
                found.add(line.partition(" id: ")[0])
    text = "".join(f"{line}\n" for line in sorted(found))
    CLASSES.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{CLASSES}: {len(found)} lines, {CLASSES.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
