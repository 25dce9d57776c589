"""What a run's engine makes of what it hears and reads, without processes and without Flink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.harness.clock import ManualClock
from tests.runtime.scaling.test_processes import Processes

from forebay.autoscale.base import Limits, Timings, Tokens
from forebay.autoscale.demand import SUFFIX, encode_demand
from forebay.autoscale.meter import DemandReport, Waiting
from forebay.autoscale.settings import ScalingSettings
from forebay.engine.launch import LocalPlaces
from forebay.runtime.scaling.engine import COUNTED_S, GONE_S, SILENT_S, ScaledEngine
from forebay.runtime.scaling.record import COURSE, read_course
from forebay.runtime.snapshot import Backlog

SETTINGS = ScalingSettings(Limits(0, 2), timings=Timings(interval_s=0.5), answer_tokens=50.0)


class Bench:
    def __init__(self, folder: Path, **changes: Any) -> None:
        self.clock = ManualClock()
        self.folder = folder / "scaling"
        processes: Any = Processes()
        self.engine = ScaledEngine(
            LocalPlaces(processes, ((0,), (1,))), SETTINGS, self.folder, name="p", model="m", port_base=8100,
            clock=self.clock, healthy=lambda replica: False, **changes,
        )  # fmt: skip
        self.said: list[str] = []

    def report(self, name: str, age_s: float = 0.0, waits: float = 0.0) -> Path:
        at_ms = self.clock.wall_ms() - round(age_s * 1000)
        waiting = (Waiting(at_ms, Tokens(waits, 100 * waits, 100 * waits)),) if waits else ()
        path = self.folder / f"{name}{SUFFIX}"
        path.write_bytes(encode_demand(DemandReport(at_ms, waiting)))
        return path

    def mend(self) -> dict[str, Any]:
        """The decision that follows after a second."""
        self.clock.advance(1.0)
        self.engine.mend(self.said.append)
        return read_course(self.folder / COURSE)[-1]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_records_of_which_nothing_is_known_cost_what_is_assumed(bench: Bench, tmp_path: Path) -> None:
    bench.engine.heard(Backlog(10, None, None, 0.0))
    seen = bench.mend()
    assert (seen["waiting"], seen["backlog_tokens"]) == (10, 2 * 10 * 50)
    bench.engine.heard(Backlog(10, 300, 40, 0.0))
    assert bench.mend()["backlog_tokens"] == 340
    # An application that finds by itself what to ask about may ask nothing of them.
    rarely = Bench(tmp_path / "rarely", asks_each=False)
    rarely.engine.heard(Backlog(10, None, None, 0.0))
    seen = rarely.mend()
    assert (seen["waiting"], seen["backlog_tokens"]) == (10, 0)


def test_what_was_counted_long_ago_waits_no_more(bench: Bench) -> None:
    bench.engine.heard(Backlog(10, 300, 40, COUNTED_S - 2.0))
    assert bench.mend()["waiting"] == 10
    bench.clock.advance(1.0)
    bench.engine.heard(None)
    assert bench.mend()["waiting"] == 0
    bench.engine.heard(Backlog(8, 300, 40, 0.0))
    assert bench.mend()["waiting"] == 8


def test_reports_of_subtasks_that_have_ended_are_removed(bench: Bench) -> None:
    gone, hangs = bench.report("gone", GONE_S), bench.report("hangs", GONE_S - 2.0)
    bench.mend()
    assert (gone.exists(), hangs.exists()) == (False, True)


def test_a_job_whose_subtasks_tell_nothing_is_said_once(bench: Bench) -> None:
    bench.clock.advance(SILENT_S)
    bench.mend()
    assert bench.said == [], "it has not been submitted yet"
    bench.engine.heard(None)
    bench.clock.advance(SILENT_S - 2.0)
    bench.mend()
    assert bench.said == []
    bench.mend()
    assert len(bench.said) == 1
    assert f"no subtask has told within {SILENT_S:.0f} s what waits" in bench.said[0]
    bench.mend()
    assert len(bench.said) == 1


def test_subtasks_that_told_something_once_may_be_silent(bench: Bench) -> None:
    bench.engine.heard(None)
    bench.report("a").touch()
    bench.mend()
    bench.clock.advance(2 * SILENT_S)
    bench.mend()
    assert bench.said == []


def test_a_replica_that_does_not_get_ready_in_the_time_that_it_is_given_has_failed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, start_timeout_s=5.0)
    bench.report("a", waits=3.0)
    assert bench.mend()["wanted"] == 1
    assert bench.engine.failed == 0
    bench.clock.advance(5.0)
    bench.mend()
    assert "was not healthy within 6 s" in bench.said[0]
    assert bench.engine.failed == 1
