"""A recovery run: its figures, and a real one with two kills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from benchmarks.recovery import Killed, Recovery, Run, await_archive
from benchmarks.tally import Tally

EXACT = Tally(events=5, results=5, dead_letters=0, lost=0, duplicated=0, wrong=0, restored=2)
KILLS = (
    Killed("job", 1.0, 4, 9.0, parallelism=2),
    Killed("engine", 9.0, 4, 3.0, 1.5),
    Killed("job", 20.0, 4, 5.0),
)


def recovery(run: Run) -> Recovery:
    return Recovery("fake", "files", "main", 1, 12.34, run)


def test_figures_are_counts_and_times_by_kind() -> None:
    found = recovery(Run(3, KILLS, EXACT, starts=3, seconds=6.0, called_again=4))
    document = found.document()
    assert found.passed
    assert {name: document[name] for name in ("events", "results", "lost", "duplicated", "dead_letters")} == {
        "events": 5,
        "results": 5,
        "lost": 0,
        "duplicated": 0,
        "dead_letters": 0,
    }
    assert (document["restored"], document["called_again"], document["rescaled"]) == (2, 4, 1)
    assert (document["kills"], document["by_kind"]) == (3, {"job": 2, "engine": 1})
    assert document["next_result_s"] == {
        "p50": 5.0,
        "max": 9.0,
        "by_kind": {"engine": {"p50": 3.0, "max": 3.0}, "job": {"p50": 7.0, "max": 9.0}},
    }
    assert (document["seed"], document["seconds"]) == (1, 12.3)
    assert orjson.loads(orjson.dumps(document))["runs"][0]["killed"][1]["down_s"] == 1.5


@pytest.mark.parametrize("field", ["lost", "duplicated", "dead_letters", "wrong"])
def test_one_event_that_is_not_exactly_once_fails_the_run(field: str) -> None:
    values = {name: getattr(EXACT, name) for name in EXACT.__slots__} | {field: 1}
    found = recovery(Run(3, KILLS, Tally(**values), starts=3, seconds=6.0))
    assert not found.passed
    assert found.document()[field] == 1


def test_a_kill_that_was_not_made_fails_the_run() -> None:
    assert not recovery(Run(4, KILLS, EXACT, starts=3, seconds=6.0)).passed


def test_no_kill_gives_no_times() -> None:
    found = recovery(Run(1, (), EXACT, starts=1, seconds=6.0))
    assert found.document()["next_result_s"] == {"by_kind": {}}


def test_an_offset_committed_ahead_of_its_result_fails_the_run() -> None:
    run = Run(2, KILLS, EXACT, starts=3, seconds=6.0, ahead=1)
    assert not recovery(run).passed
    assert recovery(run).document()["ahead"] == 1


@pytest.mark.long
@pytest.mark.flink
def test_a_job_and_its_engine_are_killed_and_every_event_gives_one_result(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "recovery", "--kills", "2"]
    # The second kill comes about 2000 events after the start; the rest is time for a slow machine.
    command += ["--events", "4000", "--work-dir", str(tmp_path / "work"), "--json", str(figures)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    document = orjson.loads(figures.read_bytes())
    assert document["by_kind"] == {"job": 1, "engine": 1}
    assert (document["lost"], document["duplicated"], document["results"]) == (0, 0, 4000)
    assert document["rescaled"] == 1
    # Both kills hit requests in flight: of the job's, at least one was issued again.
    assert document["restored"] > 0
    assert all(kill["next_result_s"] > 0 for kill in document["runs"][0]["killed"])


class Warming:
    """A run whose class archive exists, or which has ended, at the third poll."""

    def __init__(self, home: Path, ends: bool) -> None:
        self.home = home
        self.environment: dict[str, str] = {}
        self._ends = ends
        self.looks = 0

    def status(self) -> int | None:
        self.looks += 1
        if self.looks < 3:
            return None
        if self._ends:
            return 0
        (self.home / "java").mkdir()
        (self.home / "java" / "flink-1.jsa").touch()
        return None


@pytest.mark.parametrize("ends", [False, True])
def test_nothing_is_killed_before_the_archive_of_classes_is_there(tmp_path: Path, ends: bool) -> None:
    run = Warming(tmp_path, ends)
    await_archive(run)
    assert run.looks == 3
