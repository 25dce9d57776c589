"""All jobs and subtasks of a JVM share one Python interpreter: under load nothing crashes or is mixed up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import settings

from forebay.connectors.files.sink import read_jsonl_sink
from forebay.testing.answers import echo

pytestmark = pytest.mark.flink
SCRIPT = Path(__file__).with_name("one_jvm_jobs.py")
EVENTS = min(6000, 20 * settings.default.max_examples)
"""2,000, and 6,000 with `make test-faults`."""


@pytest.mark.long
def test_jobs_are_exact_while_others_are_cancelled(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "jobs"), str(EVENTS)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    # What a crash of native code leaves behind.
    assert list(tmp_path.glob("hs_err_*")) == []
    assert done.returncode == 0, done.stderr[-3000:]
    for parallelism in (2, 4):
        lines = read_jsonl_sink(tmp_path / "jobs" / f"parallelism-{parallelism}" / "results")
        results = [orjson.loads(line) for line in lines]
        given = sorted((result["fields"]["n"], result["answer"]) for result in results)
        assert given[:-1] == [(n, echo(f"event {n}")) for n in range(EVENTS)]
        assert given[-1][0] == EVENTS
