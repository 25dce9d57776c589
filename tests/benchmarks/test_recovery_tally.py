"""The comparison of a sink with its input."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest
from benchmarks.tally import SinkWatch, compare
from hypothesis import given
from hypothesis import strategies as st


def result(number: object, *, restored: bool = False, attempts: int = 1, answer: object = "a") -> bytes:
    fields = {"n": number}
    value = {"id": "x", "fields": fields, "answer": answer, "restored": restored, "attempts": attempts}
    return orjson.dumps(value)


def letter(number: object) -> bytes:
    return orjson.dumps({"cause": "timeout", "input": orjson.dumps({"n": number}).decode()})


def test_each_event_once_is_exact() -> None:
    tally = compare(3, [result(2), result(0), result(1, restored=True)], [])
    assert tally.exact
    assert (tally.events, tally.results, tally.restored) == (3, 3, 1)


def test_a_missing_event_is_lost() -> None:
    tally = compare(3, [result(0), result(2)], [])
    assert (tally.lost, tally.duplicated, tally.exact) == (1, 0, False)


def test_an_event_given_again_is_duplicated_though_none_is_lost() -> None:
    tally = compare(3, [result(0), result(1), result(1), result(1), result(2)], [])
    assert (tally.lost, tally.duplicated, tally.exact) == (0, 2, False)


def test_as_many_lines_as_events_can_hide_a_loss_and_a_duplicate() -> None:
    tally = compare(3, [result(0), result(1), result(1)], [])
    assert (tally.lost, tally.duplicated, tally.exact) == (1, 1, False)


def test_a_dead_letter_is_not_lost_but_not_exact_either() -> None:
    tally = compare(2, [result(0)], [letter(1)])
    assert (tally.lost, tally.duplicated, tally.dead_letters, tally.exact) == (0, 0, 1, False)


def test_an_event_that_is_both_result_and_dead_letter_is_duplicated() -> None:
    assert compare(1, [result(0)], [letter(0)]).duplicated == 1


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"\xff", b"{}", result(7), result(-1), result("0"), result(True), result(None)],
)
def test_a_line_that_is_no_event_of_the_input_is_wrong(line: bytes) -> None:
    tally = compare(2, [result(0), result(1), line], [])
    assert (tally.wrong, tally.lost, tally.duplicated, tally.exact) == (1, 0, 0, False)
    assert compare(2, [result(0), result(1)], [line]).wrong == 1


def test_an_answer_to_another_event_is_wrong() -> None:
    lines = [result(0, answer="0"), result(1, answer="0")]
    tally = compare(2, lines, [], lambda number, answer: answer == str(number))
    assert (tally.wrong, tally.lost) == (1, 1)


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_every_line_is_counted_once(results: list[int], letters: list[int]) -> None:
    tally = compare(10, map(result, results), map(letter, letters))
    seen = set(results) | set(letters)
    assert tally.lost == 10 - len(seen)
    assert tally.duplicated == len(results) + len(letters) - len(seen)
    assert (tally.results, tally.dead_letters, tally.wrong) == (len(results), len(letters), 0)


def test_committed_files_are_counted_and_files_in_progress_are_not(tmp_path: Path) -> None:
    watch = SinkWatch(tmp_path)
    assert watch.look() == 0
    (tmp_path / "part-a-0.jsonl").write_bytes(result(0) + b"\n" + result(1) + b"\n")
    (tmp_path / ".part-a-1.jsonl.inprogress").write_bytes(result(2) + b"\n")
    assert watch.look() == 2
    (tmp_path / "part-a-1.jsonl").write_bytes(result(2) + b"\n")
    assert watch.look() == 3
    assert watch.look() == 3


def test_what_was_written_before_a_kill_is_no_result_after_it(tmp_path: Path) -> None:
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
