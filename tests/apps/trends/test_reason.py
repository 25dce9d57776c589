"""The model's line is accepted only if the posts support it; else it is asked for once more."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.apps.trends.reason import ReasonProgram, problem_of
from forebay.apps.trends.settings import to_prompt_event
from forebay.apps.trends.values import TrendEvent
from forebay.testing import Machine

POSTS = ("McGregor looks tired in round 9 #MayweatherMcGregor", "he is gassed", "Floyd has 49 wins")
TERMS = ("tired", "looks tired")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("The boxer is very very tired", "very"),
        ("A boxer tires, the boxer slows, this boxer stops", "boxer"),
        ("Looks tired", "looks"),
        ("People think that Ronaldo is tired", "ronaldo"),
        ("It is round 10 and he slows down", "10"),
        ("He slows down in round 4", "4"),
        ("The crowd shouts #goat", "goat"),
        ("people lost 500k homes", "500k"),
        ("he slows down the 3rd time", "3rd"),
        (" ", " "),
        ("...", "..."),
        ("🥊", "🥊"),
    ],
)
def test_claims_missing_from_the_posts_are_a_problem(line: str, word: str) -> None:
    found = problem_of(line, TERMS, POSTS)
    assert found is not None
    assert found.word == word


@pytest.mark.parametrize(
    "line",
    [
        "McGregor slows down in round 9",
        "Fans think that McGregor's power is gone against Mayweather",
        "The boxer has no more air. He may lose",
        "McGregor Slows Down",
        "尽管如此，他很累",
    ],
)
def test_claims_found_in_the_posts_are_accepted(line: str) -> None:
    assert problem_of(line, TERMS, POSTS) is None


@given(st.text(max_size=200), st.lists(st.text(max_size=60), max_size=3))
def test_any_line_is_accepted_or_rejected(line: str, posts: list[str]) -> None:
    problem_of(line, TERMS, posts)


def asked(number: int = 7) -> dict[str, Any]:
    event = TrendEvent("born", number, "looks tired", TERMS, 5, 1, 5, 1.0, 0.1, 20.0, texts=POSTS)
    question = to_prompt_event(event)
    assert question is not None
    return dict(question.fields)


def test_rejected_line_is_requested_once_more_differently() -> None:
    machine = Machine(ReasonProgram())
    machine.event("7", 1, **asked())
    machine.answer("7", {"why": "People think that Ronaldo is tired"})
    again = machine.calls["7"].ask.messages[-1].content
    assert "names something that no post holds" in again
    assert '"ronaldo"' in again
    machine.answer("7", {"why": "McGregor is gassed"})
    assert machine.results[-1].answer == {"why": "McGregor is gassed"}


def test_twice_rejected_line_is_a_dead_letter() -> None:
    machine = Machine(ReasonProgram())
    machine.event("7", 1, **asked())
    machine.answer("7", {"why": "tired tired"})
    machine.answer("7", {"why": "People think that Ronaldo is tired"})
    assert machine.results == []
    (letter,) = machine.letters
    assert letter.cause == "unsupported"
    assert "'ronaldo'" in letter.detail
