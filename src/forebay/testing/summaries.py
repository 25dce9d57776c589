"""For tests of summaries: a scripted summariser, and a program driven over events, with answers at chosen
moments and restarts in between.

The summariser takes sentences from what it was given. It reads the prompt as a model would, and its answers
are as long as a model's: about one statement for every `EVENTS_A_STATEMENT` messages, each of about `WORDS`
words. Same prompt, same answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from forebay.apps.summaries.intake import Arrival
from forebay.apps.summaries.parts import MAX_SOURCES, tokens
from forebay.apps.summaries.program import Output, SummaryProgram
from forebay.apps.summaries.prompt import MAX_STATEMENT_CHARS, STATEMENT_OF_TOKENS, Ask
from forebay.apps.summaries.results import Refused, Summary
from forebay.apps.summaries.state import KeyState
from forebay.records import JSON, Usage

EVENTS_A_STATEMENT = 8
WORDS = 18
_LINE = re.compile(r"^(\d+)\. (.*)$")
_LIMIT = re.compile(r"the whole has at most (\d+) tokens")


def is_summary_form(schema: Mapping[str, JSON]) -> bool:
    """Whether an answer of this form is a summary's."""
    statement = schema.get("properties", {}).get("statements", {}).get("items", {})
    return "sources" in statement.get("properties", {})


def summarise(text: str, schema: Mapping[str, Any]) -> str:
    """The answer to the prompt `text`, as JSON."""
    earlier, messages = _part(text, "earlier"), _part(text, "messages")
    most = schema["properties"]["statements"]["maxItems"]
    groups = min(most, -(-len(messages) // EVENTS_A_STATEMENT)) if messages else 0
    statements = []
    for n in range(groups):
        group = messages[n * len(messages) // groups : (n + 1) * len(messages) // groups]
        words = " ".join(said for _, said in group).split()
        step = max(1, len(words) // WORDS)
        said = " ".join(words[::step][:WORDS])[:MAX_STATEMENT_CHARS]
        statements.append(
            {"text": said or "nothing", "sources": [number for number, _ in group][:MAX_SOURCES]}
        )
    answer: dict[str, JSON] = {"statements": statements}
    if "keep" in schema["properties"]:
        found = _LIMIT.search(text)
        room = (int(found[1]) if found else 0) - STATEMENT_OF_TOKENS * groups
        keep = []
        # The longest: a stand-in for what matters.
        for number, said in sorted(earlier, key=lambda each: (-len(each[1]), each[0])):
            cost = tokens(said) + 6
            if cost <= room:
                room -= cost
                keep.append(number)
        answer = {"keep": sorted(keep), **answer}
    return orjson.dumps(answer).decode()


def _part(text: str, mark: str) -> list[tuple[int, str]]:
    _, begun, rest = text.rpartition(f"\n<{mark}>\n")
    part = rest.partition(f"\n</{mark}>")[0] if begun else ""
    found = (_LINE.match(line) for line in part.splitlines())
    return [(int(line[1]), line[2]) for line in found if line]


END_MS = 2**63 - 1


@dataclass
class Driven:
    """A key's program and all that it did."""

    program: SummaryProgram
    key: str = "k"
    seed: int = 0
    restarts: bool = True
    failing: float = 0.0
    eager: float = 0.5
    out_of_order_ms: int = 0
    wall_ms: int | None = None
    state: KeyState = field(default_factory=KeyState)
    outputs: list[Output] = field(default_factory=list)
    asked: list[Ask] = field(default_factory=list)
    most_bytes: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.watermark_ms: int | None = None

    def run(self, events: Sequence[Arrival]) -> Driven:
        """All events, with a watermark behind each, then the end of the input."""
        newest = None
        for event in events:
            if event.time_ms is not None:
                newest = event.time_ms if newest is None else max(newest, event.time_ms)
            self.event(event)
            if newest is not None and self.random.random() < 0.7:
                self.watermark(newest - self.out_of_order_ms - 1)
            while self.random.random() < self.eager and self.answer():
                pass
        self.watermark(END_MS)
        while self.answer():
            pass
        return self

    def event(self, event: Arrival) -> None:
        self._restart()
        self._gave(self.program.on_event(self.key, self.state, event, self.watermark_ms, self.wall_ms))

    def watermark(self, to_ms: int) -> None:
        """Wakes the program at each moment it wants on the way, as timers do."""
        while True:
            wake = self.program.wake_ms(self.state)
            if wake is None or wake > to_ms:
                break
            self.watermark_ms = max(wake, self.watermark_ms or wake)
            self._gave(self.program.on_watermark(self.key, self.state, self.watermark_ms))
            after = self.program.wake_ms(self.state)
            assert after is None or after > wake, "it would be woken for ever"
        self.watermark_ms = max(to_ms, self.watermark_ms or to_ms)

    def answer(self) -> bool:
        """Answer the call that is out; whether there was one."""
        self._restart()
        ask = self.program.ask(self.key, self.state)
        if ask is None:
            return False
        self.asked.append(ask)
        if self.random.random() < self.failing:
            self._gave(self.program.on_failure(self.key, self.state))
        else:
            text = "\n".join(message.content for message in ask.messages())
            said = summarise(text, ask.schema())
            usage = Usage(ask.prompt_tokens, len(said) // 4)
            self._gave(self.program.on_answer(self.key, self.state, orjson.loads(said), usage))
        if self.watermark_ms is not None:
            self.watermark(self.watermark_ms)
        return True

    @property
    def summaries(self) -> list[Summary]:
        return [each for each in self.outputs if isinstance(each, Summary)]

    @property
    def refused(self) -> list[Refused]:
        return [each for each in self.outputs if isinstance(each, Refused)]

    def _gave(self, outputs: Sequence[Output]) -> None:
        self.outputs += outputs

    def _restart(self) -> None:
        data = self.state.to_bytes()
        self.most_bytes = max(self.most_bytes, len(data))
        if self.restarts:
            before = self.program.ask(self.key, self.state)
            self.state = KeyState.from_bytes(data)
            assert self.program.ask(self.key, self.state) == before
