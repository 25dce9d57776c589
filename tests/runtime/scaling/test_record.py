"""What a run writes down of its scaling, and what is read of it again."""

from __future__ import annotations

from pathlib import Path

from forebay.autoscale.base import Decision, Signals
from forebay.autoscale.loop import ScalingStep
from forebay.runtime.scaling.record import COURSE, ScalingRecord, read_course

STEP = ScalingStep(Signals(10.0, ready=1), Decision(2, "60 s of work wait"))


def test_a_run_begins_on_a_line_of_its_own_also_after_one_that_was_cut_off(tmp_path: Path) -> None:
    record = ScalingRecord(tmp_path / "scaling", "p")
    record.begin(0)
    record.step(STEP, 1000)
    record.step(STEP, 2000)
    path = tmp_path / "scaling" / COURSE
    path.write_bytes(path.read_bytes()[:-9])
    record.begin(5000)
    record.step(STEP, 6000)
    assert [line["at_ms"] for line in read_course(path)] == [6000]
