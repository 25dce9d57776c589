"""Asks the model why something is a trend, and checks that the posts support its line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from forebay.apps.page import UNSUPPORTED
from forebay.apps.support import WORD, unsupported
from forebay.apps.trends.names import COMMON
from forebay.apps.trends.terms import STOPWORDS
from forebay.engine.prompt import PromptTemplate
from forebay.records import JSON, Event, Message
from forebay.stateful.program import Answer, Ask, Failure, Moment, Output, Program, Step
from forebay.untrusted_text import RULE, quoted_words

WHY_CHARS = 200
SCHEMA: dict[str, JSON] = {
    "type": "object",
    "properties": {"why": {"type": "string", "minLength": 1, "maxLength": WHY_CHARS}},
    "required": ["why"],
    "additionalProperties": False,
}
PROMPT = PromptTemplate(
    messages=(
        Message(
            "system",
            "You say in one short line why something is talked about, judging by posts about it. "
            'Answer as JSON: {"why": "…"}. ' + RULE,
        ),
        Message("user", "{{ event.question }}"),
    ),
    # The question contains its own markup; quoted text inside it is escaped.
    escape=False,
)
MAX_TIMES = 2


@dataclass(frozen=True, slots=True)
class Problem:
    what: str
    word: str


def problem_of(line: str, terms: Iterable[str], texts: Iterable[str]) -> Problem | None:
    """Why the posts do not support a line, or None.

    A line must not repeat a word too often, and needs more than the trend's own terms. Names (words with a
    capital inside a sentence, hashtags, mentions), words that begin with a digit, and quotes must occur in
    the posts or terms.
    """
    if not any(map(str.isalnum, line)):
        return Problem("it holds no word", line)
    words = [word.lower() for word in WORD.findall(line)]
    informative = [word for word in words if len(word) > 2 and word not in STOPWORDS and word not in COMMON]
    for one, two in pairwise(words):
        if one == two:
            return Problem("it repeats a word", one)
    for word, times in Counter(informative).most_common(1):
        if times > MAX_TIMES:
            return Problem("it repeats a word", word)
    own = {word for term in terms for word in term.lower().split()}
    if all(word.lstrip("#@") in own or word in own for word in informative or words):
        return Problem("it only repeats the words of the trend", words[0])
    missing = unsupported(line, [*terms, *texts])
    return Problem("it names something that no post holds", missing[0]) if missing else None


@dataclass(frozen=True)
class ReasonProgram(Program[dict[str, Any]]):
    """One question of each trend at a time; the state is the question in flight.

    If the posts do not support the line, the model is asked once more, in another way. After that the
    question is a dead letter, `unsupported`.
    """

    def initial(self, key: str) -> dict[str, Any]:
        return {}

    def on_event(self, state: dict[str, Any], event: Event, now: Moment) -> Step[dict[str, Any]]:
        return Step({"fields": dict(event.fields)}, ask=_ask(event.fields))

    def on_answer(self, state: dict[str, Any], tag: str, answer: Answer, now: Moment) -> Step[dict[str, Any]]:
        about, line = state["fields"], answer.value["why"]
        problem = problem_of(line, [about["name"], *about["terms"]], about["texts"])
        if problem is None:
            return Step(None, outputs=(Output({"why": line}),))
        if tag != "again":
            return Step(state, ask=_ask(again(about, problem), "again"))
        detail = f"the model's line {line!r} was rejected twice, the second time because {problem.what}"
        return Step(None, letter=Failure(UNSUPPORTED, f"{detail}: {problem.word!r}", attempts=2))

    def on_failure(
        self, state: dict[str, Any], tag: str, failure: Failure, now: Moment
    ) -> Step[dict[str, Any]]:
        return Step(None, letter=failure)


def again(about: Mapping[str, JSON], problem: Problem) -> dict[str, JSON]:
    rejected = f"A first answer was rejected: {problem.what}.\n{quoted_words([problem.word])}"
    question = (
        f"{about['question']}\n{rejected}\nAnswer with words of the posts: what happened, in their view?"
    )
    return {**about, "question": question}


def _ask(fields: Mapping[str, JSON], tag: str = "") -> Ask:
    messages: Sequence[Any] = PROMPT.render(fields)
    return Ask(tuple(messages), tag, SCHEMA)
