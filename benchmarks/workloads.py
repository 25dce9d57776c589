"""Jobs of a recovery run: the main job or an application, with its events and expected output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from benchmarks.conversations import (
    MAX_TOKENS,
    by_window,
    chatter,
    expected_answers,
    expected_summaries,
    messages,
)
from benchmarks.expected_events import TopicsJob, TrendsJob
from benchmarks.killable import PROMPT, KillableEngine
from benchmarks.tally import NUMBER, Expected, numbered
from forebay.apps.sessions import Sessions
from forebay.apps.summaries.settings import SummarySpec

SubjectKind = Literal["main", "sessions", "summary", "topics", "trends"]
RECOVERY_SUMMARIES = SummarySpec(
    author="who",
    size_s=60.0,
    lead_s=5.0,
    chunk_tokens=200,
    partial_tokens=60,
    summary_tokens=120,
    fan_in=2,
    work_tokens=1_000_000,
)
IsAnswer = Callable[[int, object], bool]
"""Whether a value can be the answer to the event with this number."""


class Subject(Protocol):
    @property
    def in_order(self) -> bool:
        """Whether the output depends on the order of all events, which partitions do not keep."""
        ...

    @property
    def events_a_call(self) -> int: ...

    @property
    def events_per_kill(self) -> int | None: ...

    def events(self, count: int, seed: int) -> Sequence[dict[str, Any]]:
        """The events; the field `n` is the number."""
        ...

    def document(self) -> dict[str, Any]:
        """The part of a pipeline file about processing."""
        ...

    def source(self) -> dict[str, Any]:
        """Settings of the source, except its location."""
        ...

    def expected(self, events: Sequence[dict[str, Any]], engine: KillableEngine) -> Expected: ...


class OnePerEvent:
    """Each event, numbered from 0, gives one result with its fields."""

    in_order = False
    events_a_call = 1
    events_per_kill = None

    def judge(self, events: Sequence[dict[str, Any]], engine: KillableEngine) -> IsAnswer:
        raise NotImplementedError

    def source(self) -> dict[str, Any]:
        return {}

    def expected(self, events: Sequence[dict[str, Any]], engine: KillableEngine) -> Expected:
        return numbered(len(events), self.judge(events, engine))


class MainJob(OnePerEvent):
    def events(self, count: int, seed: int) -> Sequence[dict[str, Any]]:
        return [{NUMBER: number} for number in range(count)]

    def document(self) -> dict[str, Any]:
        return {"prompt": PROMPT + "{{ " + NUMBER + " }}", "sampling": {"max_tokens": 8}}

    def judge(self, events: Sequence[dict[str, Any]], engine: KillableEngine) -> IsAnswer:
        return engine.is_answer


@dataclass(frozen=True)
class SessionsJob(OnePerEvent):
    """Turns of conversations: each answer depends on all earlier turns, so a lost, doubled or
    misplaced turn makes later ones wrong."""

    sessions: int = 40
    settings: Sessions = field(default_factory=lambda: Sessions(budget_tokens=512, idle_s=None))

    def events(self, count: int, seed: int) -> Sequence[dict[str, Any]]:
        return list(messages(count, self.sessions, seed, words=12))

    def document(self) -> dict[str, Any]:
        settings = self.settings
        application = {"budget_tokens": settings.budget_tokens, "idle_s": settings.idle_s}
        return {
            "application": {"type": "sessions", **application},
            "key": "{{ user }}",
            "sampling": {"max_tokens": MAX_TOKENS},
        }

    def judge(self, events: Sequence[dict[str, Any]], engine: KillableEngine) -> IsAnswer:
        if engine.calls() is None:
            # A real engine's words are unknown; the number of the turn is not.
            return lambda number, answer: (
                isinstance(answer, dict) and answer.get("turn") == number // self.sessions + 1
            )
        expected = expected_answers(list(events), self.settings)
        return lambda number, answer: answer == expected[number]


@dataclass(frozen=True)
class SummaryJob:
    """Summaries of channels, six messages per window: chunks, merges and closes."""

    settings: SummarySpec = field(default_factory=lambda: RECOVERY_SUMMARIES)
    in_order = False
    events_a_call = 3
    events_per_kill = None

    def events(self, count: int, seed: int) -> Sequence[dict[str, Any]]:
        return list(chatter(count, seed, size_s=self.settings.size_s))

    def document(self) -> dict[str, Any]:
        changed = {
            name: getattr(self.settings, name)
            for name in SummarySpec.model_fields
            if getattr(self.settings, name) != getattr(SummarySpec(), name)
        }
        return {
            "application": {"type": "summary", **changed},
            "key": "{{ channel }}",
            "id": "e{{ " + NUMBER + " }}",
            "event_time": {"out_of_orderness_s": 0.0},
        }

    def source(self) -> dict[str, Any]:
        return {"time": "at", "time_format": "unix_ms"}

    def expected(self, events: Sequence[dict[str, Any]], engine: KillableEngine) -> Expected:
        return by_window(expected_summaries(events, self.settings), whole=engine.calls() is not None)


SUBJECTS: dict[SubjectKind, Subject] = {
    "main": MainJob(),
    "sessions": SessionsJob(),
    "summary": SummaryJob(),
    "topics": TopicsJob(),
    "trends": TrendsJob(),
}
