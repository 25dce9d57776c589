"""`forebay fleet status`, and the ranges that `forebay run` accepts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.cli.commands import refusal
from typer.testing import CliRunner

from forebay.cli import application
from forebay.fleet.autoscale.base import Backlog, Decision, Signals, Tokens
from forebay.fleet.autoscale.loop import ScalingStep
from forebay.pipeline.scaling_record import ReplicaStatus, ScalingRecord, course_picture, read_course

STEP = ScalingStep(
    Signals(10.0, ready=1, starting=(3.0,), backlog=(Backlog(-2.0, Tokens(4, 40, 80)),), running=3.0),
    Decision(2, "60 s of work wait"),
    "no memory",
)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScalingRecord:
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
    made = ScalingRecord(tmp_path / "home" / "run" / "scaling" / "triage-1", "triage")
    made.begin(0)
    made.step(STEP, 1000)
    made.status([ReplicaStatus("http://127.0.0.1:8100", "ready", 12.0, (0,), 3, "a.log")], 1000)
    return made


def test_fleet_shows_state_load_and_reason(record: ScalingRecord, tmp_path: Path) -> None:
    shown = CliRunner().invoke(application(), ["fleet", "status"]).stdout
    line = " ".join(shown.split())
    assert f"triage (process {os.getpid()}): 1 ready, 2 wanted; 4 records waiting, 3 at" in line
    assert "no memory" in line
    assert "http://127.0.0.1:8100" in shown
    (run,) = json.loads(CliRunner().invoke(application(), ["fleet", "status", "--json"]).stdout)["runs"]
    assert (run["decision"]["late"], run["decision"]["backlog_tokens"]) == (4, 120)
    assert (run["replicas"][0]["in_flight"], run["replicas"][0]["state"]) == (3, "ready")
    picture = tmp_path / "course.svg"
    done = CliRunner().invoke(application(), ["fleet", "status", "--plot", str(picture)])
    assert done.exit_code == 0
    assert "records that wait" in picture.read_text()


def test_a_run_that_was_killed_or_has_ended_is_not_shown(record: ScalingRecord, tmp_path: Path) -> None:
    path = next((tmp_path / "home" / "run" / "scaling").glob("*/status.json"))
    status = json.loads(path.read_text())
    path.write_text(json.dumps({**status, "born_s": status["born_s"] - 500.0}))
    assert json.loads(CliRunner().invoke(application(), ["fleet", "status", "--json"]).stdout) == {"runs": []}
    record.end()
    assert "No run scales" in CliRunner().invoke(application(), ["fleet", "status"]).stdout


def test_history_is_that_of_the_last_run_without_a_truncated_line(
    record: ScalingRecord, tmp_path: Path
) -> None:
    path = next((tmp_path / "home").rglob("course.jsonl"))
    record.begin(5000)
    record.step(STEP, 6000)
    with path.open("ab") as file:
        file.write(b'{"at_ms": 70')
    assert [line["at_ms"] for line in read_course(path)] == [6000]
    assert "nothing" in course_picture([], "nothing").svg()


PIPELINE = """
name: p
source: {type: jsonl, path: in.jsonl}
prompt: "{{ text }}"
sink: {type: jsonl, path: out}
"""


@pytest.mark.flink
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--replicas", "3..1"], "write 1..3"),
        (["--replicas", "0..2", "--engine", "http://127.0.0.1:1"], "--replicas: only for the local engine"),
        (["--replicas", "0..9999"], "scaling.max: expected at most"),
        (["--replicas", "0..2", "--cluster", "192.0.2.1:1"], "scaling: local replicas need a cluster"),
    ],
)
def test_invalid_ranges_are_rejected_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
    (tmp_path / "p.yaml").write_text(PIPELINE)
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    assert words in refusal("run", str(tmp_path / "p.yaml"), *arguments)
