"""A recovery run: its figures, and a real one with two kills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from benchmarks.killable import AFTER_S, DOWN_S, MAX_RESULTS, TURNS, WITH_BROKER, plan
from benchmarks.recovery import Killed, Recovery, Run
from benchmarks.tally import SinkWatch, Tally, numbered, tally
from hypothesis import example, given
from hypothesis import strategies as st

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


@pytest.mark.parametrize("count", [1, 2, 5, 10, 20])
def test_job_resumes_at_another_parallelism(count: int) -> None:
    scaled = [i for i, kill in enumerate(plan(count, 1, rescale_to=3)) if kill.parallelism]
    kills = plan(count, 1, rescale_to=3)
    assert [(kills[i].kind, kills[i].parallelism) for i in scaled] == [("job", 3)]
    assert abs(scaled[0] - count / 2) <= len(TURNS)
    assert all(kill.parallelism is None for kill in plan(count, 1, rescale_to=None))


def result(number: object, *, restored: bool = False, attempts: int = 1, answer: object = "a") -> bytes:
    fields = {"n": number}
    value = {"id": "x", "fields": fields, "answer": answer, "restored": restored, "attempts": attempts}
    return orjson.dumps(value)


def letter(number: object) -> bytes:
    return orjson.dumps({"cause": "timeout", "input": orjson.dumps({"n": number}).decode()})


def test_each_event_once_is_exact() -> None:
    found = tally(numbered(3), [result(2), result(0), result(1, restored=True)], [])
    assert found.exact
    assert (found.events, found.results, found.restored) == (3, 3, 1)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"\xff", b"{}", result(7), result(-1), result("0"), result(True), result(None)],
)
def test_line_of_an_unknown_event_is_wrong(line: bytes) -> None:
    found = tally(numbered(2), [result(0), result(1), line], [])
    assert (found.wrong, found.lost, found.duplicated, found.exact) == (1, 0, 0, False)
    assert tally(numbered(2), [result(0), result(1)], [line]).wrong == 1


def test_an_answer_to_another_event_is_wrong() -> None:
    lines = [result(0, answer="0"), result(1, answer="0")]
    found = tally(numbered(2, lambda number, answer: answer == str(number)), lines, [])
    assert (found.wrong, found.lost) == (1, 1)


@example([*range(10)], [])
@example([*range(9)], [9])
@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_every_line_is_counted_once(results: list[int], letters: list[int]) -> None:
    found = tally(numbered(10), map(result, results), map(letter, letters))
    seen = set(results) | set(letters)
    assert found.lost == 10 - len(seen)
    assert found.duplicated == len(results) + len(letters) - len(seen)
    assert (found.results, found.dead_letters, found.wrong) == (len(results), len(letters), 0)
    assert found.exact == (sorted(results) == list(range(10)) and not letters)


def test_committed_files_are_counted_and_files_in_progress_are_not(tmp_path: Path) -> None:
    watch = SinkWatch(tmp_path)
    assert watch.look() == 0
    (tmp_path / "part-a-0.jsonl").write_bytes(result(0) + b"\n" + result(1) + b"\n")
    (tmp_path / ".part-a-1.jsonl.inprogress").write_bytes(result(2) + b"\n")
    assert watch.look() == 2
    (tmp_path / "part-a-1.jsonl").write_bytes(result(2) + b"\n")
    assert watch.look() == 3
    assert watch.look() == 3


def test_results_before_a_kill_do_not_count_after_it(tmp_path: Path) -> None:
    watch = SinkWatch(tmp_path)

    def commit(name: str, line: bytes, moment_s: float) -> None:
        (tmp_path / name).write_bytes(line)
        os.utime(tmp_path / name, (moment_s, moment_s))
        watch.look()

    commit("part-a-0.jsonl", result(0) + b"\n", 999)
    commit("part-a-1.jsonl", b"", 1002)
    assert not watch.written_after(1000)
    commit("part-a-2.jsonl", result(1) + b"\n", 1001)
    assert watch.written_after(1000)
    assert not watch.written_after(1000, retried=True)
    commit("part-a-3.jsonl", result(2, attempts=2) + b"\n", 1001)
    assert watch.written_after(1000, retried=True)


def test_run_without_kills_has_no_times() -> None:
    found = recovery(Run(1, (), EXACT, starts=1, seconds=6.0))
    assert found.document()["next_result_s"] == {"by_kind": {}}


def test_the_same_seed_gives_the_same_kills_and_another_seed_others() -> None:
    assert plan(20, 1) == plan(20, 1)
    assert plan(20, 1) != plan(20, 2)


def test_kinds_of_kills_alternate() -> None:
    assert [kill.kind for kill in plan(7, 3)] == list(TURNS * 2)[:7]
    assert {kill.kind for kill in plan(20, 3, broker=True)} == {*WITH_BROKER} == {*TURNS, "broker"}


def test_kill_times_are_within_their_bounds() -> None:
    for kill in plan(200, 7):
        assert 1 <= kill.after_results <= MAX_RESULTS
        assert AFTER_S[0] <= kill.after_s <= AFTER_S[1]
        assert DOWN_S[0] <= kill.down_s <= DOWN_S[1]
