"""Figures of a slowdown without the pipeline, and the criteria to pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import application
from benchmarks.slowdown import SPEEDS, Course, Sample, SlowdownOptions, step_of
from typer.testing import CliRunner

from benchmarks import slowdown as module
from forebay.pipeline.snapshot import Snapshot
from forebay.testing.replica import WorkReport


def at(at_s: float, could_s: float, useful_s: float, **more: int) -> Sample:
    counts = {"answers": 0, "calls": 0, "aborted": 0, "waiting": 0, "running": 0, **more}
    return Sample(at_s, WorkReport(1.0, could_s, useful_s + 3.0, 3.0, **counts), more.get("calls", 0) // 10)


def test_the_first_seconds_do_not_count_for_goodput_but_calls_do() -> None:
    samples = [
        at(0.0, 0.0, 0.0, calls=5),
        at(10.0, 100.0, 0.0, calls=20, aborted=4, waiting=8, running=2),
        at(20.0, 200.0, 10.0, answers=10, calls=40, aborted=6, running=4),
        at(30.0, 300.0, 90.0, answers=60, calls=105, aborted=7, running=4),
    ]
    step = step_of(0.1, samples, 20.0)
    assert (step.goodput, step.answers_per_s) == (0.8, 5.0)
    assert (step.calls, step.thrown_away, step.retries) == (100, 7, 10)
    assert (step.held_mean, step.held_max) == (6.0, 10)


def test_the_course_starts_at_the_first_answer_and_steps_through_speeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds: list[float] = []
    monkeypatch.setattr(module, "fetch_work", lambda url: at(0.0, 0.0, 0.0).work)
    monkeypatch.setattr(module, "set_speed", lambda url, speed: speeds.append(speed))
    course = Course(SlowdownOptions(step_s=10.0), "http://replica", lambda _: None)
    course.watch(Snapshot(0.5, "RUNNING"))
    assert speeds == []
    now_s = 7.0
    while not course.over(Snapshot(now_s, "RUNNING")):
        course.watch(Snapshot(now_s, "RUNNING", results=1))
        now_s += 0.5
    assert speeds == list(SPEEDS)
    assert [len(samples) for samples in course.samples] == [21, 21, 21, 21, 21]
    assert now_s == pytest.approx(7.0 + 50.5)


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
def test_each_kind_is_run_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed: bool) -> None:
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
