from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.harness.homes import new_home

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start a copy of the test module's `PROGRAM` with these arguments; its output goes to a file of that
    name."""
    (tmp_path / "program.py").write_text(request.module.PROGRAM)
    (tmp_path / "in").mkdir()
    home = new_home(tmp_path / "home")
    started: list[subprocess.Popen[bytes]] = []

    def run(name: str, *args: str) -> subprocess.Popen[bytes]:
        with (tmp_path / name).open("wb") as text:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "program.py", *args],
                cwd=tmp_path,
                env={**os.environ, "FOREBAY_HOME": str(home)},
                stdout=text,
                stderr=text,
            )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
