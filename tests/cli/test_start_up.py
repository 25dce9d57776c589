"""Modules that the command line does not import early, because each would delay `--help`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

PROGRAM = """
import json, sys
sys.argv = ["forebay", *{words!r}]
from forebay.cli import main
try:
    main()
except SystemExit as end:
    status = end.code
print("\\n" + json.dumps([status, sorted(sys.modules)]))
"""
SLOW = ("aiohttp", "jinja2", "jsonschema", "numpy", "psutil", "pyflink", "rich.live", "ruamel.yaml")
ONLY_TASKS = ("aiohttp", "jsonschema", "numpy")
STARTS_FLINK = ("forebay.pipeline.flink_process", "forebay.pipeline.supervisor", "forebay.flink.jvm")
COMPLETION = {"_FOREBAY_COMPLETE": "complete_bash", "COMP_WORDS": "forebay ru", "COMP_CWORD": "1"}


def modules_of(folder: Path, *words: str, **environment: str) -> set[str]:
    """The modules that a fresh process has loaded after the command `words`."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(words=words)],
        env={**os.environ, "FOREBAY_HOME": str(folder), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    status, modules = json.loads(done.stdout.splitlines()[-1])
    assert status == 0, done.stderr
    return set(modules)


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["--help"], {}),
        (["--version"], {}),
        (["run", "--help"], {}),
        (["demo", "--help"], {}),
        (["engine", "up", "--help"], {}),
        (["simulate", "--help"], {}),
        ([], COMPLETION),
    ],
    ids=["help", "version", "run", "demo", "engine", "simulate", "completion"],
)
def test_help_imports_no_heavy_library(tmp_path: Path, words: list[str], environment: dict[str, str]) -> None:
    loaded = modules_of(tmp_path, *words, **environment)
    assert not {name for name in SLOW if name in loaded}


def test_dry_run_imports_nothing_that_starts_flink(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "name: p\nsource: {type: generator}\nprompt: '{{ text }}'\nsink: {type: stdout}\n"
    )
    loaded = modules_of(tmp_path, "run", "p.yaml", "--dry-run")
    assert "forebay.pipeline.spec" in loaded
    assert not {name for name in (*STARTS_FLINK, *ONLY_TASKS) if name in loaded}


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        ("forebay.pipeline.run", (*ONLY_TASKS, "pyflink.datastream")),
        ("forebay.pipeline.flink_client", ONLY_TASKS),
        ("forebay.flink.operator", ONLY_TASKS),
        ("forebay.connectors.files.unpack", ("encodings.cp1252", "encodings.big5")),
    ],
)
def test_job_start_imports_no_heavy_library(module: str, slow: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {name for name in slow if name in done.stdout.split()}
