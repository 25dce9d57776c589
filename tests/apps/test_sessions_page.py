"""The page of sessions has each conversation, and what failed in it."""

from __future__ import annotations

from typing import Any

import orjson

from forebay.apps.sessions_page import read_sessions, sessions_page, top_sessions

ATTACK = "</p><script>alert(1)</script>"


def turn(key: str, number: int, said: str, text: str = "Yes.") -> bytes:
    answer = {"turn": number, "text": text, "cut": False, "folds": 0}
    return orjson.dumps({"key": key, "fields": {"m": {"text": said}}, "answer": answer})


def ended(key: str, turns: int, **more: Any) -> bytes:
    answer = {"ended": "idle", "turns": turns, "summary": "", **more}
    return orjson.dumps({"key": key, "fields": {"session": key}, "answer": answer})


LINES = [
    turn("ann", 1, "Hello?"),
    turn("bob", 1, "Hi!", ATTACK),
    turn("ann", 2, "Are you there?"),
    ended("ann", 2, summary="Ann greets."),
    turn("ann", 1, "Me again."),
    orjson.dumps(
        {"key": "bob", "cause": "answer_refused", "detail": "no", "input": '{"m": {"text": "Do it"}}'}
    ),
    b"junk",
]


def test_each_session_is_a_conversation() -> None:
    first, second, bob = read_sessions(LINES, "m.text")
    assert [said for _, said, _ in first.turns] == ["Hello?", "Are you there?"]
    assert (first.answered, first.ended, first.summary) == (2, "idle", "Ann greets.")
    assert [(second.key, *second.turns)] == [("ann", (1, "Me again.", "Yes."))]
    assert bob.turns[1] == (0, "Do it", "no answer: it refused (answer_refused: no)")


def test_the_page_shows_messages_and_answers_as_text() -> None:
    document = sessions_page(LINES, "m.text")
    assert "3 sessions; 2 of them have not ended" in document
    assert ATTACK not in document
    assert document.index("Do it") < document.index("Me again.") < document.index("Hello?")
    assert "0 sessions" in sessions_page([])


def test_a_long_session_is_the_first_and_is_shown_in_part() -> None:
    lines = [*LINES, *(turn("eve", n, f"message {n}") for n in range(1, 31))]
    assert top_sessions(lines, "m.text")[0] == "eve: 30 turns, last: Yes."
    document = sessions_page(lines, "m.text")
    assert "Not shown: 10 older turns." in document
    assert "message 30" in document
    assert "message 9<" not in document
