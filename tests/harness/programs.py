"""Programs for tests of stateful inference; picklable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay.records import Event, Message
from forebay.stateful.program import Answer, Ask, Moment, Output, Program, Step, Timer


@dataclass(frozen=True)
class Remember(Program[list[int]]):
    """Asks about every event with the numbers (`n`) of those that were answered before, and its
    `text`; emits the answer, and all the numbers."""

    idle_ms: int | None = None
    woken_ms: int | None = None

    def initial(self, key: str) -> list[int]:
        return []

    def on_event(self, state: list[int], event: Event, now: Moment) -> Step[list[int]]:
        number, text = event.fields["n"], event.fields.get("text", "")
        timers: dict[str, Timer | None] = {}
        if self.idle_ms is not None and event.time_ms is not None:
            timers = {"idle": Timer(event.time_ms + self.idle_ms)}
        question = Ask((Message("user", f"{now.key}: {[*state, number]} {text}"),), str(number))
        return Step(state, question, timers=timers)

    def on_answer(self, state: list[int], tag: str, answer: Answer, now: Moment) -> Step[list[int]]:
        seen = [*state, int(tag)]
        timers: dict[str, Timer | None] = {}
        if self.woken_ms is not None:
            timers = {"woken": Timer(now.wall_ms + self.woken_ms, "wall")}
        return Step(seen, outputs=(Output({"said": answer.value, "seen": seen}),), timers=timers)

    def on_timer(self, state: list[int], name: str, time_ms: int, now: Moment) -> Step[list[int]]:
        if name == "woken":
            return Step(state, outputs=(Output({"woken": state}),))
        return Step(None, outputs=(Output({"ended": state}, {"key": now.key}, time_ms - 1),))


@dataclass(frozen=True)
class AskLater(Program[Any]):
    """Asks about a key's newest `text` after `after_ms` of event time; emits the answer and that event's
    number (`n`)."""

    after_ms: int = 1000

    def initial(self, key: str) -> Any:
        return []

    def on_event(self, state: Any, event: Event, now: Moment) -> Step[Any]:
        assert event.time_ms is not None
        kept = [event.fields["n"], event.fields.get("text", "")]
        return Step(kept, timers={"ask": Timer(event.time_ms + self.after_ms)})

    def on_timer(self, state: Any, name: str, time_ms: int, now: Moment) -> Step[Any]:
        return Step(state, Ask((Message("user", f"{now.key} {state[1]}"),)))

    def on_answer(self, state: Any, tag: str, answer: Answer, now: Moment) -> Step[Any]:
        return Step(None, outputs=(Output({"said": answer.value, "n": state[0]}, {"n": state[0]}),))
