"""The drill itself: one correct scenario with real processes, and mistakes that it must find."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from benchmarks.drill.faults import Surroundings
from benchmarks.drill.link import compiler
from benchmarks.drill.play import play
from benchmarks.drill.scenario import Fault, Scenario
from benchmarks.drill.workload import workload
from benchmarks.object_store import ObjectStore

from forebay.settings import load_settings

SMALL = Scenario(
    seed=3,
    application="infer",
    source="file",
    sink="files",
    events=120,
    keys=3,
    ordered=True,
    event_time=False,
    parallelism=1,
    capacity=8,
    checkpoint_s=0.2,
    slow=0.05,
    bad=17,
    faults=(
        Fault("kill all", 30, parallelism=2),
        Fault("cut engine", 5, away_s=0.3),
        *([Fault("full disk", 1, "checkpoints", away_s=0.5)] if compiler() else []),
    ),
)


@pytest.mark.long
@pytest.mark.flink
def test_correct_scenario_and_its_report() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.drill", "--json", "--tries", "0", "--scenario", "-"],
        input=SMALL.to_json().encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    told = orjson.loads(done.stdout)
    assert told["passed"]
    assert told["scenarios"] == 1
    assert told["faults"] == len(SMALL.faults)
    assert told["by_kind"]["kill all"] == 1
    assert told["by_source"] == {"file": {"scenarios": 1, "faults": len(SMALL.faults), "failed": 0}}
    assert told["starts"] >= 2


@pytest.mark.long
@pytest.mark.flink
@pytest.mark.xdist_group("object-store")
@pytest.mark.usefixtures("store", "s3_plugin")
def test_outage_and_takeover(tmp_path: Path, store_server: ObjectStore) -> None:
    faults = (
        Fault("busy store", 20, away_s=3.0),
        Fault("take over", 10, away_s=0.5, still="all but jvm"),
    )
    around = Surroundings(store=store_server, connectors=load_settings().connectors)
    outcome = play(replace(SMALL, state="s3", faults=faults), tmp_path / "work", around)
    assert outcome.problems == ()
    assert outcome.made == ("busy store", "take over")


# A command that writes results of its own, in place of `forebay`.
PRETENDER = """
import json, pathlib, sys
folder = pathlib.Path(json.load(open(sys.argv[2]))["sink"]["path"])
folder.mkdir(parents=True)
(folder / "part-a-0.jsonl").write_text('{"fields": {"n": 0}, "answer": "not this"}\\n')
"""


def pretending(*words: str) -> Surroundings:
    return Surroundings(command=(sys.executable, "-c", PRETENDER, *words), patience_s=5.0)


def test_lost_or_wrong_output_is_detected(tmp_path: Path) -> None:
    outcome = play(replace(SMALL, faults=()), tmp_path / "work", pretending())
    assert any("lost" in problem for problem in outcome.problems)
    assert any("wrong: 0: not this instead of" in problem for problem in outcome.problems)


def test_report_that_contradicts_the_sink_is_detected(tmp_path: Path) -> None:
    code = (
        PRETENDER
        + """
report = {"state": "FINISHED", "results": 7, "dead_letters": 0}
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(report))
"""
    )
    around = Surroundings(command=(sys.executable, "-c", code), patience_s=5.0)
    outcome = play(replace(SMALL, faults=()), tmp_path / "work", around)
    assert "the report has 7 results, the run wrote 1" in outcome.problems


def test_silent_end_is_detected(tmp_path: Path) -> None:
    around = Surroundings(command=(sys.executable, "-c", "raise SystemExit(1)"))
    (problem,) = play(replace(SMALL, faults=()), tmp_path / "work", around).problems
    assert "ended with status 1 without a message" in problem


NAMES_A_GAP = """
import json, sys
if "on_gap" not in json.load(open(sys.argv[2]))["source"]:
    sys.exit("t/0: offsets 3 to 4 were deleted unread (2 records at most)")
"""


def test_command_that_names_a_gap_is_repeated(tmp_path: Path) -> None:
    around = Surroundings(command=(sys.executable, "-c", NAMES_A_GAP))
    outcome = play(replace(SMALL, faults=()), tmp_path / "work", around)
    assert outcome.starts == 2
    # A gap of another topic excuses nothing.
    lost = len(workload(SMALL).expected.results)
    assert any(f"{lost} lost" in problem for problem in outcome.problems)


def test_unexplained_end_is_detected(tmp_path: Path) -> None:
    around = Surroundings(command=(sys.executable, "-c", "raise SystemExit('no reason')"))
    (problem,) = play(replace(SMALL, faults=()), tmp_path / "work", around).problems
    assert "ended with status 1 without a fault" in problem
    assert "no reason" in problem


def test_stalled_run_is_detected_and_ended(tmp_path: Path) -> None:
    around = Surroundings(command=(sys.executable, "-c", "import time; time.sleep(600)"), patience_s=0.5)
    (problem,) = play(replace(SMALL, faults=()), tmp_path / "work", around).problems
    assert "nothing moved" in problem
