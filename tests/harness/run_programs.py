"""Runs programs one after the other in a process with one JVM, as if each were alone: `programs.py ORDER`."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 400
MARK = "a program has ended: "


@dataclass(frozen=True, slots=True)
class Ran:
    """A program's output, and the traceback that it ended with."""

    printed: list[str]
    error: str


def run_programs(files: Mapping[str, Path], home: Path) -> dict[str, Ran]:
    done = subprocess.run(
        [sys.executable, __file__, json.dumps({name: str(file) for name, file in files.items()})],
        env={**os.environ, "FOREBAY_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    found: dict[str, Ran] = {}
    printed: list[str] = []
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            end = json.loads(line.removeprefix(MARK))
            found[end["name"]] = Ran(printed, end["error"])
            printed = []
        else:
            printed.append(line)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return found


def main(order: Mapping[str, str]) -> None:
    for name, file in order.items():
        os.chdir(Path(file).parents[1])
        sys.argv, sys.path[0] = [file], str(Path(file).parent)
        error = ""
        try:
            # Its module is `__main__`, so that its classes are pickled by value, like a user's.
            runpy.run_path(file, run_name="__main__")
        except Exception:
            error = traceback.format_exc()
        _print(MARK + json.dumps({"name": name, "error": error}))


def _print(line: str) -> None:
    from pyflink import java_gateway

    sys.stdout.flush()
    if java_gateway._gateway is None:
        print(line, flush=True)
    else:
        java_gateway._gateway.jvm.System.out.println(line)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
