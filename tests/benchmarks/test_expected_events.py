"""Expected output of recovery runs of trends and topics, and its comparison with actual lines."""

from __future__ import annotations

from typing import Any

import orjson
from benchmarks.expected_events import AnswersById, by_id
from benchmarks.tally import tally


class Engine:
    """A scripted engine, or one with unpredictable words."""

    url = ""

    def __init__(self, *, scripted: bool = True) -> None:
        self._scripted = scripted

    def calls(self) -> Any:
        return {} if self._scripted else None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


ANSWERS_BY_ID: AnswersById = {"a": {"kind": "born"}, "b": {"kind": "why", "why": "echo"}}


def line(id: str, answer: Any, **more: Any) -> bytes:
    return orjson.dumps({"id": id, "answer": answer, **more})


LINES = [line(id, answer) for id, answer in ANSWERS_BY_ID.items()]


def held(lines: list[bytes], **engine: Any) -> tuple[int, int, int, bool]:
    found = tally(by_id(ANSWERS_BY_ID, "why", Engine(**engine)), lines, [])  # type: ignore[arg-type]
    return found.lost, found.duplicated, found.wrong, found.exact


def test_all_once_is_exact() -> None:
    assert held(LINES) == (0, 0, 0, True)


def test_differences_are_counted() -> None:
    assert held(LINES[:1]) == (1, 0, 0, False)
    assert held([*LINES, LINES[0]]) == (0, 1, 0, False)
    assert held([*LINES, line("c", {})]) == (0, 0, 1, False)
    assert held([LINES[0], line("b", {"kind": "why", "why": "other"})]) == (1, 0, 1, False)
    assert held([*LINES, b"junk", b"[1]", line([], {})]) == (0, 0, 3, False)  # type: ignore[arg-type]


def test_real_engine_may_answer_anything() -> None:
    other = [LINES[0], line("b", {"kind": "why", "why": "words of its own"})]
    assert held(other, scripted=False) == (0, 0, 0, True)
    assert held([line("a", {"kind": "ended"}), other[1]], scripted=False) == (1, 0, 1, False)


def test_a_dead_letter_is_not_exact() -> None:
    assert not tally(by_id(ANSWERS_BY_ID, "why", Engine()), LINES, [b"{}"]).exact  # type: ignore[arg-type]
