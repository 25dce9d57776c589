"""Generates conversations, and the answers that a scripted replica must give at each turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from forebay.apps.sessions import Sessions
from forebay.records import Message, Request, Usage
from forebay.testing.answers import answer_to, request_text, tokens
from forebay.testing.stateful import Machine

VOCABULARY = (
    "order parcel invoice train ticket hotel garden kitchen river bridge report meeting budget doctor "
    "school window engine battery signal camera coffee winter holiday museum concert market harbour "
    "forest letter should could maybe again later before after without near under because really"
)
WORDS = VOCABULARY.split()
MAX_TOKENS = 32


def messages(count: int, sessions: int, seed: int, *, words: int = 30) -> Iterator[dict[str, Any]]:
    draw = random.Random(f"conversations:{seed}")
    for n in range(count):
        said = " ".join(draw.choices(WORDS, k=draw.randint(words // 2, words * 3 // 2)))
        yield {"n": n, "user": f"user-{n % sessions}", "text": f"Question {n}: {said}?"}


def expected_answers(events: list[dict[str, Any]], settings: Sessions) -> list[Any]:
    """The answer of a correct session to each event, with a scripted replica, whose answers depend on every
    word of the prompt."""
    machine = Machine(settings.program(event_time=False))
    for event in events:
        key = event["user"]
        machine.event(key, event["n"], **{name: event[name] for name in event if name != "n"})
        while key in machine.calls:
            ask = machine.calls[key].ask
            sampling = ask.sampling
            most = MAX_TOKENS if sampling is None else sampling.max_tokens
            text = request_text(Request("", "", ask.messages))
            answer, _ = answer_to(text, None, max_tokens=most)
            machine.answer(key, answer, Usage(tokens(text), tokens(answer)))
    return [result.answer for result in machine.results]


def rendered_again(header: str, turns: list[tuple[str, str]], text: str) -> tuple[Message, ...]:
    """The baseline: an always different header, and the whole history as one text."""
    said = "".join(f"User: {user}\nAssistant: {answer}\n" for user, answer in turns)
    return (Message("user", f"{header}\n\n{said}User: {text}\nAssistant:"),)
