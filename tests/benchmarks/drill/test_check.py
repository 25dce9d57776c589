"""Each kind of mistake is found, and nothing else."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from benchmarks.drill.check import check
from benchmarks.drill.workload import Expected

EXPECTED = Expected({"0": "a", "1": "b", "2": "c"}, frozenset({"3"}), {"k": ("0", "1", "2")})
RIGHT = [("0", "a"), ("1", "b"), ("2", "c")]
LETTERS = [b'{"input": "{\\"n\\": 3}"}']


def problems(results: list[tuple[str | None, Any]], letters: list[bytes]) -> tuple[str, ...]:
    lines = [orjson.dumps({"name": name, "answer": answer}) for name, answer in results]
    return check(EXPECTED, lines, letters, lambda line: line.get("name"))


def test_right_is_right() -> None:
    assert problems(RIGHT, LETTERS) == ()
    assert problems(RIGHT, [b'{"input": "3,k,a row of CSV"}']) == ()


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
    ],
)  # fmt: skip
def test_each_mistake_is_found(
    results: list[tuple[str | None, Any]], letters: list[bytes], word: str
) -> None:
    (problem,) = problems(results, letters)
    assert word in problem
