"""A child process imports nothing from where it happens to stand."""

from __future__ import annotations

import subprocess
from pathlib import Path

from forebay.child_processes import module_command


def test_a_planted_module_is_not_imported(tmp_path: Path) -> None:
    for name in ("orjson", "psutil", "runpy", "json", "forebay"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')")
    command = module_command("forebay.engine.launch.supervisor", "{}")
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    # The module runs, and finds its argument where `python -m` puts it.
    assert "Order.__init__() missing" in ended.stderr
