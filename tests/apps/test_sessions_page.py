"""The page of sessions has each conversation, and what failed in it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from forebay.apps.sessions_page import read_sessions, sessions_page, top_sessions

ATTACK = "</p><script>alert(1)</script>"


def turn(key: str, number: int, said: str, text: str = "Yes.", **more: Any) -> bytes:
    answer = {"turn": number, "text": text, "cut": False, "folds": 0}
    return orjson.dumps({"key": key, "fields": {"m": {"text": said}}, "answer": answer, **more})


def unanswered(key: str | None, said: str, **more: Any) -> bytes:
    record = orjson.dumps({"m": {"text": said}}).decode()
    return orjson.dumps({"key": key, "cause": "answer_refused", "detail": "no", "input": record, **more})


def ended(key: str, turns: int, **more: Any) -> bytes:
    answer = {"ended": "idle", "turns": turns, "summary": "", **more}
    return orjson.dumps({"key": key, "fields": {"session": key}, "answer": answer})


LINES = [
    turn("ann", 1, "Hello?"),
    turn("bob", 1, "Hi!", ATTACK),
    turn("ann", 2, "Are you there?"),
    ended("ann", 2, summary="Ann greets."),
    turn("ann", 1, "Me again."),
    unanswered("bob", "Do it"),
    b"junk",
]


def test_each_session_is_a_conversation() -> None:
    first, bob, second = read_sessions(LINES, "m.text")
    assert [text for _, text, _ in first.turns] == ["Hello?", "Are you there?"]
    assert (first.answered, first.ended, first.summary) == (2, "idle", "Ann greets.")
    assert [(second.key, *second.turns)] == [("ann", (1, "Me again.", "Yes."))]
    assert bob.turns[1] == (0, "Do it", "no answer: it refused (answer_refused: no)")


def test_page_shows_messages_and_answers_as_text() -> None:
    document = sessions_page(LINES, "m.text")
    assert "3 sessions; 2 of them have not ended" in document
    assert ATTACK not in document
    assert document.index("Me again.") < document.index("Do it") < document.index("Hello?")
    assert "0 sessions" in sessions_page([])


def test_long_session_is_first_and_truncated() -> None:
    lines = [*LINES, *(turn("eve", n, f"message {n}") for n in range(1, 31))]
    assert top_sessions(lines, "m.text")[0] == "eve: 30 turns, last: Yes."
    document = sessions_page(lines, "m.text")
    assert "Not shown: 10 older turns." in document
    assert "message 30" in document
    assert "message 9<" not in document


def test_failure_in_an_ended_session_is_shown_there() -> None:
    lines = [turn("ann", 1, "one"), turn("ann", 2, "two"), ended("ann", 2), unanswered("ann", "three")]
    (talk,) = read_sessions(lines, "m.text")
    assert [number for number, *_ in talk.turns] == [1, 2, 0]
    assert (talk.answered, talk.ended) == (2, "idle")
    assert "1 session<" in sessions_page(lines, "m.text")


@pytest.mark.parametrize("clock", ["position", "time_ms"])
def test_failure_is_shown_at_its_position(clock: str) -> None:
    def at(place: int) -> dict[str, Any]:
        return {clock: f"in/a.jsonl@{place}" if clock == "position" else place}

    lines = [turn("ann", 1, "2", **at(2)), turn("ann", 2, "10", **at(10)), ended("ann", 2)]
    lines += [turn("ann", 1, "20", **at(20))]
    lines += [unanswered("ann", str(place), **at(place)) for place in (30, 15, 9, 1)]
    found = [[text for _, text, _ in talk.turns] for talk in read_sessions(lines, "m.text")]
    assert found == [["1", "2", "9", "10", "15"], ["20", "30"]]


def test_lone_failure_is_not_a_session() -> None:
    assert read_sessions([unanswered("ann", "hi"), unanswered(None, "hi")], "m.text") == []
