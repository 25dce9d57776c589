"""Counts of what a sink has written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import orjson

from forebay.engine.answer import CUT
from forebay.flink.metric_names import MAX_LABEL_VALUES, OTHER
from forebay.records import DeadLetter, Result


@dataclass(slots=True)
class WrittenCounts:
    """Programs may choose causes; those after the first `MAX_LABEL_VALUES` are counted as `other`."""

    results: int = 0
    dead_letters: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cut_answers: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    def add(self, output: Result | DeadLetter) -> None:
        if isinstance(output, DeadLetter):
            self.dead_letters += 1
            known = output.cause in self.failed or len(self.failed) < MAX_LABEL_VALUES
            self.failed[output.cause if known else OTHER] += 1
            return
        self.results += 1
        self.prompt_tokens += output.usage.prompt_tokens
        self.completion_tokens += output.usage.completion_tokens
        self.cut_answers += output.finish_reason == CUT

    def encode(self) -> dict[str, Any]:
        # Not `asdict`: it copies a Counter by counting its items.
        names = (each.name for each in fields(self) if each.name != "failed")
        return {**{name: getattr(self, name) for name in names}, "failed": dict(self.failed)}

    @classmethod
    def decode(cls, values: dict[str, Any]) -> WrittenCounts:
        return cls(**{**values, "failed": Counter(values["failed"])})

    @classmethod
    def sum(cls, parts: Iterable[WrittenCounts]) -> WrittenCounts:
        total = cls()
        for part in parts:
            total.results += part.results
            total.dead_letters += part.dead_letters
            total.prompt_tokens += part.prompt_tokens
            total.completion_tokens += part.completion_tokens
            total.cut_answers += part.cut_answers
            total.failed += part.failed
        return total


@dataclass(frozen=True, slots=True)
class EndNote:
    """Counts of one of a sink's `subtasks` in a run, recorded when the job ends. `what`: `RESULTS`,
    `DEAD_LETTERS` or `ASSIGNMENTS`."""

    what: str
    subtasks: int
    counts: WrittenCounts

    def encode(self) -> str:
        note = {"what": self.what, "subtasks": self.subtasks, "counts": self.counts.encode()}
        return orjson.dumps(note).decode()

    @classmethod
    def decode(cls, text: bytes | str) -> EndNote:
        values = orjson.loads(text)
        return cls(values["what"], values["subtasks"], WrittenCounts.decode(values["counts"]))


def noted_counts(notes: Iterable[EndNote], what: str) -> WrittenCounts | None:
    """None if some subtask left no note. One that ended before a restart and ran again has left two."""
    found = [note for note in notes if note.what == what]
    if not found or len(found) < max(note.subtasks for note in found):
        return None
    return WrittenCounts.sum(note.counts for note in found)
