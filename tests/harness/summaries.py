"""Drives a summary program over events, with answers at chosen times and restarts in between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from forebay.apps.summaries.intake import Arrival
from forebay.apps.summaries.program import Output, SummaryProgram
from forebay.apps.summaries.prompt import SummaryCall
from forebay.apps.summaries.state import KeyState
from forebay.apps.summaries.values import Refused, Summary
from forebay.records import Usage
from forebay.stateful.program import Failure
from forebay.testing.answers import summarise

END_MS = 2**63 - 1


@dataclass
class Driven:
    """A key's program and its history."""

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
    asked: list[SummaryCall] = field(default_factory=list)
    most_bytes: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.watermark_ms: int | None = None

    def run(self, events: Sequence[Arrival]) -> Driven:
        """All events, each followed by a watermark, then the end of the input."""
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
        """Advance the watermark, and wake the program at each time that it set, like timers."""
        while True:
            wake = self.program.wake_ms(self.state)
            if wake is None or wake > to_ms:
                break
            self.watermark_ms = max(wake, self.watermark_ms or wake)
            self._gave(self.program.on_watermark(self.key, self.state, self.watermark_ms))
            after = self.program.wake_ms(self.state)
            assert after is None or after > wake, "it would be woken without end"
        self.watermark_ms = max(to_ms, self.watermark_ms or to_ms)

    def answer(self) -> bool:
        """Answer the call in flight; returns whether there was one."""
        self._restart()
        ask = self.program.ask(self.key, self.state)
        if ask is None:
            return False
        self.asked.append(ask)
        if self.random.random() < self.failing:
            self._gave(self.program.on_failure(self.key, self.state, Failure("timeout", "too slow")))
        else:
            text = "\n".join(message.content for message in ask.messages())
            output = summarise(text, ask.schema())
            usage = Usage(ask.prompt_tokens, len(output) // 4)
            self._gave(self.program.on_answer(self.key, self.state, orjson.loads(output), usage))
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
