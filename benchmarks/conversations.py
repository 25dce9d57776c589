"""Makes conversations and chats from a seed, and the answers of a scripted replica to them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from benchmarks.tally import NUMBER, Expected
from forebay.apps.sessions import Sessions
from forebay.apps.summaries.settings import SummarySpec
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
        detail = " ".join(draw.choices(WORDS, k=draw.randint(words // 2, words * 3 // 2)))
        yield {"n": n, "user": f"user-{n % sessions}", "text": f"Question {n}: {detail}?"}


def expected_answers(events: list[dict[str, Any]], settings: Sessions) -> list[Any]:
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
    detail = "".join(f"User: {user}\nAssistant: {answer}\n" for user, answer in turns)
    return (Message("user", f"{header}\n\n{detail}User: {text}\nAssistant:"),)


CHANNELS = 40
A_WINDOW = 6
"""Messages per channel and window."""
BEGIN_MS = 1_600_000_020_000

Window = tuple[str, int]
"""A channel, and the start of one of its windows."""


def chatter(count: int, seed: int, *, size_s: float) -> Iterator[dict[str, Any]]:
    """`count` messages in order of time, channels in turn, `A_WINDOW` of each in every `size_s`."""
    draw = random.Random(f"chatter:{seed}")
    step_ms = size_s * 1000 / A_WINDOW / CHANNELS
    for n in range(count):
        detail = " ".join(draw.choices(WORDS, k=draw.randint(8, 40)))
        yield {
            NUMBER: n,
            "channel": f"channel-{n % CHANNELS}",
            "who": f"user-{draw.randrange(30)}",
            "text": f"{detail}, number {n}",
            "at": BEGIN_MS + round(n * step_ms),
        }


def expected_summaries(events: Sequence[dict[str, Any]], settings: SummarySpec) -> dict[Window, Any]:
    """The summary of each window from a scripted replica in a run without kills."""
    machine = Machine(settings.program(event_time=True), wall_ms=BEGIN_MS + 10**9)
    for event in events:
        detail = {name: event[name] for name in event if name != NUMBER}
        machine.pass_time(watermark_ms=event["at"] - 1)
        _answer_all(machine)
        machine.event(event["channel"], event[NUMBER], time_ms=event["at"], **detail)
        _answer_all(machine)
    machine.pass_time(watermark_ms=2**63 - 1)
    machine.end(_answer_all)
    return {_window(result.answer): result.answer for result in machine.results}


def _answer_all(machine: Machine) -> None:
    while machine.calls:
        key, call = next(iter(machine.calls.items()))
        ask = call.ask
        assert ask.sampling is not None
        text = request_text(Request("", "", ask.messages))
        answer, _ = answer_to(text, ask.schema, max_tokens=ask.sampling.max_tokens)
        machine.answer(key, orjson.loads(answer), Usage(tokens(text), tokens(answer)))


def by_window(expected: dict[Window, Any], *, whole: bool) -> Expected:
    """Each expected summary once: exactly if `whole`, else with its numbers of events, since a real model's
    words are unknown."""

    def of_result(line: dict[str, Any]) -> Window | None:
        answer = line["answer"]
        window = _window(answer)
        wanted = expected.get(window)
        if wanted is None:
            return None
        counts = answer["events"] == wanted["events"] == answer["summarised"]
        return window if (answer == wanted if whole else counts) else None

    return Expected(len(expected), of_result)


def _window(answer: Any) -> Window:
    return answer["key"], answer["window"]["start_ms"]
