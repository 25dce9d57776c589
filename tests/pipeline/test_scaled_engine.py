"""How a run's engine reacts to demand reports, without processes or Flink."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.harness.clock import ManualClock
from tests.pipeline.test_local_replicas import Processes

from forebay.engine.launch import LocalPlaces
from forebay.fleet.autoscale.base import ScalingLimits, ServiceClass, Timings, Tokens
from forebay.fleet.autoscale.demand import FRESH_S, GONE_S, SUFFIX, encode_demand, report_name
from forebay.fleet.autoscale.forecast import SLOTS
from forebay.fleet.autoscale.learned import KEEP_S
from forebay.fleet.autoscale.meter import COUNTED_S, DemandReport, TopicBacklog, WaitingRecords
from forebay.fleet.autoscale.settings import ScalingSettings
from forebay.pipeline import scaling_record
from forebay.pipeline.scaled_engine import SILENT_S, ScaledEngine
from forebay.pipeline.scaling_record import COURSE, LEARNED, read_course
from forebay.processes import pid_space

HERE = pid_space()
SETTINGS = ScalingSettings(ScalingLimits(0, 2), timings=Timings(interval_s=0.5), answer_tokens=50.0)


class Bench:
    def __init__(self, folder: Path, clock: ManualClock | None = None, **changes: Any) -> None:
        self.clock = clock or ManualClock()
        self.folder = folder / "scaling"
        processes: Any = Processes()
        settings = changes.pop("settings", SETTINGS)
        self.engine = ScaledEngine(
            LocalPlaces(processes, ((0,), (1,))), settings, self.folder, name="p", port_base=8100,
            clock=self.clock, **{"model": "m", "healthy": lambda replica: False, **changes},
        )  # fmt: skip
        self.output: list[str] = []

    def report(self, name: str, age_s: float = 0.0, waits: float = 0.0) -> Path:
        at_ms = self.clock.wall_ms() - round(age_s * 1000)
        waiting = (WaitingRecords(at_ms, Tokens(waits, 100 * waits, 100 * waits)),) if waits else ()
        path = self.folder / f"{name}{SUFFIX}"
        path.write_bytes(encode_demand(DemandReport(at_ms, waiting)))
        return path

    def check_replicas(self) -> dict[str, Any]:
        """Make the decision that follows one second later."""
        self.clock.advance(1.0)
        self.engine.check_replicas(self.output.append)
        return read_course(self.folder / COURSE)[-1]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_unknown_records_cost_the_assumed_tokens(bench: Bench, tmp_path: Path) -> None:
    bench.engine.observe(TopicBacklog(10, None, None, 0.0))
    seen = bench.check_replicas()
    assert (seen["waiting"], seen["backlog_tokens"]) == (10, 2 * 10 * 50)
    bench.engine.observe(TopicBacklog(10, 300, 40, 0.0))
    assert bench.check_replicas()["backlog_tokens"] == 340
    # An application that finds by itself what to ask about may ask nothing of them.
    rarely = Bench(tmp_path / "rarely", asks_each=False)
    rarely.engine.observe(TopicBacklog(10, None, None, 0.0))
    seen = rarely.check_replicas()
    assert (seen["waiting"], seen["backlog_tokens"]) == (10, 0)


def test_old_backlog_count_expires(bench: Bench) -> None:
    bench.engine.observe(TopicBacklog(10, 300, 40, COUNTED_S - 2.0))
    assert bench.check_replicas()["waiting"] == 10
    bench.clock.advance(1.0)
    bench.engine.observe(None)
    assert bench.check_replicas()["waiting"] == 0
    bench.engine.observe(TopicBacklog(8, 300, 40, 0.0))
    assert bench.check_replicas()["waiting"] == 8


def test_reports_of_ended_subtasks_are_removed(bench: Bench) -> None:
    gone, hangs = bench.report("gone", GONE_S), bench.report("hangs", GONE_S - 2.0)
    bench.check_replicas()
    assert (gone.exists(), hangs.exists()) == (False, True)


def test_old_report_of_an_ended_process_is_removed_at_once(bench: Bench) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    ended_pid = process.pid

    def told(pid: int, age_s: float, space: str = HERE) -> Path:
        name = report_name(space, pid, f"{age_s:.0f}").removesuffix(SUFFIX)
        return bench.report(name, age_s, waits=2.0)

    ended, hangs = told(ended_pid, FRESH_S), told(os.getpid(), FRESH_S)
    # One that is fresh is not asked after.
    last = told(ended_pid, 0.0)
    # Of a container: which process that is, and whether it has ended, is not known here.
    contained = told(ended_pid, FRESH_S, "elsewhere")
    assert bench.check_replicas()["waiting"] == 6
    assert [path.exists() for path in (ended, hangs, last, contained)] == [False, True, True, True]


def test_hung_subtask_keeps_its_replicas(bench: Bench) -> None:
    bench.report("a")
    bench.report("b", waits=6000.0)
    assert bench.check_replicas()["wanted"] == 2
    for second in range(round(GONE_S) - 1):
        bench.report("a")
        seen = bench.check_replicas()
        assert (seen["wanted"], seen["waiting"]) == (2, 6000), f"after {second} s"


def test_job_without_reports_is_logged_once(bench: Bench) -> None:
    bench.clock.advance(SILENT_S)
    bench.check_replicas()
    assert bench.output == [], "it has not been submitted yet"
    bench.engine.observe(None, runs=False)
    bench.clock.advance(2 * SILENT_S)
    bench.check_replicas()
    assert bench.output == [], "it waits for slots"
    bench.engine.observe(None)
    bench.clock.advance(SILENT_S - 2.0)
    bench.check_replicas()
    assert bench.output == []
    bench.check_replicas()
    assert len(bench.output) == 1
    assert f"no subtask has reported its demand within {SILENT_S:.0f} s" in bench.output[0]
    bench.check_replicas()
    assert len(bench.output) == 1


def test_subtasks_may_be_silent_after_a_report(bench: Bench) -> None:
    bench.engine.observe(None)
    bench.report("a").touch()
    bench.check_replicas()
    bench.clock.advance(2 * SILENT_S)
    bench.check_replicas()
    assert bench.output == []


def test_replica_not_ready_in_time_has_failed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, start_timeout_s=5.0)
    bench.report("a", waits=3.0)
    assert bench.check_replicas()["wanted"] == 1
    assert bench.engine.failed == 0
    bench.clock.advance(5.0)
    bench.check_replicas()
    assert "was not healthy within 6 s" in bench.output[0]
    assert bench.engine.failed == 1


class Stream:
    """A subtask that answers four records of a thousand tokens per second, with more waiting."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._done = 0

    def goes_on(self, seconds: int) -> None:
        for _ in range(seconds):
            self._done += 4
            now_ms = self._bench.clock.wall_ms()
            waiting = (WaitingRecords(now_ms + 10_000, Tokens(3, 3000, 300)),)
            total = Tokens(self._done, 1000 * self._done, 100 * self._done)
            report = DemandReport(now_ms, waiting, arrived=total, done=total)
            (self._bench.folder / f"a{SUFFIX}").write_bytes(encode_demand(report))
            self._bench.check_replicas()


def parts(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((bench.folder / LEARNED).read_bytes())["parts"]
    return found


@pytest.mark.heavy
def test_next_run_uses_what_a_killed_run_learned(tmp_path: Path) -> None:
    """The next run may be on a rebooted machine, whose monotonic clock starts at the boot."""
    killed = Bench(tmp_path, healthy=lambda replica: True)
    killed.engine.observe(TopicBacklog(10, 300, 40, 0.0))
    Stream(killed).goes_on(round(5.5 * KEEP_S))
    before = parts(killed)
    assert before["speed"]["work_s"] > 0
    assert before["record cost"] == {"prompt": 30.0, "output": 4.0}
    began = Bench(tmp_path, ManualClock(10.0, killed.clock.wall_ms() + 3_600_000), asks_each=False)
    began.engine.observe(TopicBacklog(10, None, None, 0.0))
    assert began.check_replicas()["backlog_tokens"] == 340
    assert began.output == []
    Stream(began).goes_on(5)
    began.engine.close()
    after = parts(began)
    assert after["speed"] == before["speed"]
    seasons = [each["policy deadline"]["classes"]["default"]["season"] for each in (before, after)]
    slot = seasons[0]["slot"]
    assert seasons[0]["days"][slot % SLOTS] is None
    # Only the unfinished five minutes: an hour without a run is not an hour without arrivals.
    for name in ("days", "weeks"):
        known = {at: rate for at, rate in enumerate(seasons[1][name]) if rate is not None}
        assert list(known) == [slot % len(seasons[1][name])]
        assert known.popitem()[1] > 0


def test_ended_run_saves_what_it_learned(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.engine.observe(TopicBacklog(10, 300, 40, 0.0))
    bench.check_replicas()
    assert not (bench.folder / LEARNED).exists()
    bench.engine.close()
    assert parts(bench)["record cost"] == {"prompt": 30.0, "output": 4.0}


def test_failed_save_is_repeated_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    bench = Bench(tmp_path)
    bench.engine.observe(TopicBacklog(10, 300, 40, 0.0))
    with monkeypatch.context() as patch:
        patch.setattr(scaling_record, "write_atomic", full)
        bench.clock.advance(KEEP_S)
        bench.check_replicas()
    assert not (bench.folder / LEARNED).exists()
    # Nothing more was learned.
    bench.engine.close()
    assert parts(bench)["record cost"] == {"prompt": 30.0, "output": 4.0}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is not JSON"),
        (b'{"format": 99}', "expected format 4, found 99"),
        (b"x" * (2 << 20), "it is larger than"),
    ],
)
def test_foreign_file_is_logged_once_and_replaced(content: bytes, why: str, tmp_path: Path) -> None:
    folder = tmp_path / "scaling"
    folder.mkdir()
    (folder / LEARNED).write_bytes(content)
    bench = Bench(tmp_path)
    for _ in range(3):
        bench.check_replicas()
    assert len(bench.output) == 1
    assert why in bench.output[0]
    assert str(folder / LEARNED) in bench.output[0]
    bench.engine.close()
    assert Bench(tmp_path).output == []


def test_state_learned_for_another_model_is_ignored(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.engine.observe(TopicBacklog(10, 300, 40, 0.0))
    bench.engine.close()
    other = Bench(tmp_path, model="n")
    other.check_replicas()
    assert "'m'" in other.output[0]
    other.engine.observe(TopicBacklog(10, None, None, 0.0))
    assert other.check_replicas()["backlog_tokens"] == 2 * 10 * 50


@pytest.mark.heavy
def test_full_disk_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    bench = Bench(tmp_path)
    monkeypatch.setattr(scaling_record, "write_atomic", full)
    Stream(bench).goes_on(round(2 * KEEP_S))
    bench.engine.close()
    assert not (bench.folder / LEARNED).exists()


def test_backlog_is_split_by_class_also_in_the_next_run(tmp_path: Path) -> None:
    settings = replace(SETTINGS, slo_s=60.0, other_classes=(ServiceClass("archive", 3600.0),))
    engine = Bench(tmp_path, settings=settings)
    report = DemandReport(engine.clock.wall_ms(), by_class={"archive": Tokens(100, 100, 100)})
    (engine.folder / f"a{SUFFIX}").write_bytes(encode_demand(report))
    engine.engine.observe(TopicBacklog(10_000, 1_000_000, 1_000_000, 0.0))
    first = engine.check_replicas()
    engine.engine.close()
    again = Bench(tmp_path, settings=settings)
    again.report("b")
    again.engine.observe(TopicBacklog(10_000, 1_000_000, 1_000_000, 0.0))
    assert again.check_replicas()["wanted"] == first["wanted"] == 1
    # All of it is due in a minute otherwise.
    other = Bench(tmp_path / "other", settings=replace(settings, other_classes=()))
    (other.folder / f"a{SUFFIX}").write_bytes(encode_demand(report))
    other.engine.observe(TopicBacklog(10_000, 1_000_000, 1_000_000, 0.0))
    assert other.check_replicas()["wanted"] == 2
