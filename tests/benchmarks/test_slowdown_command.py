"""`python -m benchmarks slowdown` without the pipeline: what it runs and writes, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import application
from benchmarks.slowdown import SlowdownOptions
from typer.testing import CliRunner

from benchmarks import slowdown as module

STEP = {
    "speed": 0.1, "goodput": 0.95, "answers_per_s": 3.1, "calls": 380, "thrown_away": 0, "retries": 0,
    "held_mean": 18.2, "held_max": 21,
}  # fmt: skip


def measured(options: SlowdownOptions, passed: bool) -> dict[str, Any]:
    return {
        "replica": options.replica, "step_s": options.step_s, "steps": [STEP], "results": 10, "doubled": 0,
        "dead_letters": {}, "calls": 10, "thrown_away": 0, "thrown_away_share": 0.0, "passed": passed,
    }  # fmt: skip


@pytest.mark.parametrize("passed", [True, False])
def test_each_kind_is_run_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed: bool
) -> None:
    monkeypatch.setattr(module, "measure_slowdown", lambda options, *_: measured(options, passed))
    file = tmp_path / "slowdown.json"
    command = ["slowdown", "--quick", "--json", str(file)]
    done = CliRunner().invoke(application(), [*command, "--replica", "whole", "--replica", "long"])
    assert done.exit_code == (0 if passed else 1), done.output
    assert [(run["replica"], run["step_s"]) for run in json.loads(file.read_text())["runs"]] == [
        ("whole", 40.0),
        ("long", 40.0),
    ]
    assert "0.95" in done.output
