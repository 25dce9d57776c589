"""Each kind of mistake is found, and nothing else."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from typing import Any

import orjson
import pytest
from benchmarks.drill.check import Found, check, check_report, skipped_places
from benchmarks.drill.workload import Expected

EXPECTED = Expected({"0": "a", "1": "b", "2": "c"}, {"3": "bad_request"}, {"k": ("0", "1", "2")})
RIGHT = [("0", "a"), ("1", "b"), ("2", "c")]
LETTERS = [b'{"input": "{\\"n\\": 3}", "cause": "bad_request"}']

COUNTS = {"results": 3, "dead_letters": 1}


def problems(
    results: Sequence[tuple[str | None, Any]],
    letters: list[bytes],
    skipped: Collection[str] = (),
    deleted: Collection[str] = (),
) -> tuple[str, ...]:
    lines = [orjson.dumps({"name": name, "answer": answer}) for name, answer in results]
    return check(EXPECTED, Found(lines, letters, (), skipped, deleted), lambda line: line.get("name"))


def test_correct_output_passes() -> None:
    assert problems(RIGHT, LETTERS) == ()
    assert problems(RIGHT, [b'{"input": "3,k,a row of CSV", "cause": "bad_request"}']) == ()


@pytest.mark.parametrize("cut", range(20, 40))
def test_event_is_identified_by_the_start_of_its_input(cut: int) -> None:
    raw = b'{"n": 3, "text": "' + b"\xff" * 30
    letter = {"input_base64": base64.b64encode(raw[:cut]).decode(), "cause": "bad_request"}
    assert problems(RIGHT, [orjson.dumps(letter)]) == ()
    assert problems(RIGHT, [b'{"input": "{\\"n\\": 3, \\"te", "cause": "bad_request"}']) == ()


@pytest.mark.parametrize(
    ("results", "letters", "word"),
    [
        (RIGHT[:2], LETTERS, "1 lost: 2"),
        ([*RIGHT, RIGHT[2]], LETTERS, "doubled: 2 (2 times)"),
        ([*RIGHT[:2], ("2", "x")], LETTERS, "wrong: 2: x instead of c"),
        ([*RIGHT, ("9", "c")], LETTERS, "not expected: 9"),
        ([*RIGHT, (None, "c")], LETTERS, "nameless"),
        ([RIGHT[1], RIGHT[0], RIGHT[2]], LETTERS, "out of order: 1 before 0 under k"),
        (RIGHT, [], "dead letters lost: 3"),
        (RIGHT, LETTERS * 2, "dead letters doubled: 3 (2 times)"),
        (RIGHT, [*LETTERS, b'{"input": "1", "cause": "timeout"}'], "dead letters not expected: timeout"),
        (
            RIGHT,
            [b'{"input": "3,k", "cause": "timeout", "detail": "of 2 s"}'],
            "wrong cause: 3: timeout instead of bad_request: of 2 s",
        ),
    ],
)  # fmt: skip
def test_each_mistake_is_found(
    results: list[tuple[str | None, Any]], letters: list[bytes], word: str
) -> None:
    (problem,) = problems(results, letters)
    assert word in problem


@pytest.mark.parametrize(
    ("topics", "problem"),
    [
        ([("0", "7"), ("1", None)], ()),
        ([("0", "7")], ("1 texts without a topic: 1",)),
        ([("0", "7"), ("1", None), ("1", None)], ("1 texts with several topics: 1",)),
        ([("0", "7"), ("1", "7")], ("1 texts with a wrong topic: 1: {'topic': '7'}",)),
        ([("0", "7"), ("1", None), ("9", None)], ("1 texts with a wrong topic: 9: {'topic': None}",)),
    ],
)
def test_the_topic_of_each_text_is_compared(topics: list[Any], problem: tuple[str, ...]) -> None:
    lines = [orjson.dumps({"id": id, "answer": {"topic": topic}}) for id, topic in topics]
    expected = Expected({}, assignments={"0": "7", "1": None})
    assert check(expected, Found([], [], lines), lambda line: None) == problem


def test_deleted_event_must_be_named() -> None:
    assert problems(RIGHT[:2], LETTERS, skipped={"2"}, deleted={"1", "2"}) == ()
    assert problems(RIGHT, [], skipped={"3"}, deleted={"3"}) == ()
    assert problems(RIGHT[:2], LETTERS, deleted={"2"}) == ("1 lost: 2",)


def test_events_named_as_deleted_must_not_appear_elsewhere() -> None:
    both = problems(RIGHT, LETTERS, skipped={"2", "3"}, deleted={"2", "3"})
    assert both == ("2 named as deleted, and there: 2, 3",)
    (problem,) = problems(RIGHT[:2], LETTERS, skipped={"2"})
    assert problem == "1 named as deleted, and were not: 2"


def test_ranges_are_parsed_from_command_output() -> None:
    text = "Error: t-1/0: offsets 3 to 5 were deleted unread (3 records at most); t.b/12: offsets 0 to 0 were"
    assert skipped_places([text, "x", f"{text} deleted unread"]) == {
        *(("t-1", 0, offset) for offset in (3, 4, 5)),
        ("t.b", 12, 0),
    }


@pytest.mark.parametrize(
    ("report", "word"),
    [
        (COUNTS, None),
        ({**COUNTS, "results": 4}, "the report has 4 results, the run wrote 3"),
        ({**COUNTS, "dead_letters": 0}, "the report has 0 dead_letters, the run wrote 1"),
        ({"results": 3}, "the report has None dead_letters"),
        ({**COUNTS, "skipped_records": 2, "gaps": ["t/0: offsets 1 to 2 were deleted unread"]}, None),
        ({**COUNTS, "skipped_records": 2, "gaps": []}, "2 skipped records, its ranges 0"),
    ],
)  # fmt: skip
def test_a_report_agrees_with_the_sinks(report: dict[str, Any], word: str | None) -> None:
    found = check_report(report, 3, 1)
    assert (word is None and not found) or (word is not None and word in found[0])


def test_a_report_without_known_counts_is_not_compared() -> None:
    assert check_report({"results": 4, "dead_letters": 0}, None, None) == ()
