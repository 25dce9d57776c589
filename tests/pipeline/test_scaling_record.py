"""The record of a run's scaling, written and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.fleet.autoscale.base import Decision, Signals
from forebay.fleet.autoscale.loop import ScalingStep
from forebay.pipeline import scaling_record
from forebay.pipeline.scaling_record import (
    COURSE,
    ScalingRecord,
    read_course,
    running_statuses,
    scaling_folder,
)
from forebay.settings import Settings

STEP = ScalingStep(Signals(10.0, ready=1), Decision(2, "60 s of work wait"))


def test_run_begins_on_a_new_line_after_a_cut_off_one(tmp_path: Path) -> None:
    written = ScalingRecord(tmp_path / "scaling", "p")
    written.begin(0)
    written.step(STEP, 1000)
    written.step(STEP, 2000)
    path = tmp_path / "scaling" / COURSE
    path.write_bytes(path.read_bytes()[:-9])
    written.begin(5000)
    written.step(STEP, 6000)
    assert [line["at_ms"] for line in read_course(path)] == [6000]


def test_only_runs_alive_on_this_machine_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(home=tmp_path, python=Path())
    folder = scaling_folder(settings, "p", "state")
    written = ScalingRecord(folder, "p")
    written.status([], 0)
    assert [found["pipeline"] for found in running_statuses(settings)] == ["p"]
    # There, a process of this number is another one, whenever it was born.
    monkeypatch.setattr(scaling_record, "pid_space", lambda: "another container")
    assert list(running_statuses(settings)) == []
