"""A disk that is full, and a clock that is set, for one process only."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.drill.link import Shim, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs Linux and a C compiler")


def run(shim: Shim, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **shim.environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    (tmp_path / "disk").mkdir()
    return Shim(tmp_path / "shim", tmp_path / "disk")


def test_only_the_disk_is_full_and_only_while_it_is(shim: Shim, tmp_path: Path) -> None:
    write = "import os, sys; f = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY); os.write(f, b'x')"
    on, off = str(tmp_path / "disk" / "file"), str(tmp_path / "file")
    assert run(shim, write, on).returncode == 0
    shim.full(True)
    assert "No space left on device" in run(shim, write, on).stderr
    assert run(shim, write, off).returncode == 0
    shim.full(False)
    assert run(shim, write, on).returncode == 0


def test_the_clock_is_set_from_where_it_is_and_monotonic_time_is_not(shim: Shim) -> None:
    tell = "import time; print(time.time(), time.monotonic())"
    shim.step_clock(-7200.0)
    shim.step_clock(10.25)
    before_s, before_mono_s = time.time(), time.monotonic()
    wall_s, mono_s = map(float, run(shim, tell).stdout.split())
    assert before_s - 7189.75 <= wall_s <= time.time() - 7189.74
    assert before_mono_s <= mono_s <= time.monotonic()
