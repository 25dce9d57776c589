"""Counts of what a sink has written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import orjson

from forebay.engine.content import CUT
from forebay.flink.metrics import MAX_CAUSES, OTHER
from forebay.records import DeadLetter, Result


@dataclass(slots=True)
class WrittenCounts:
    """Results and dead letters, the tokens of the results, how many of them were cut at `max_tokens`, and the
    dead letters by cause. Programs choose causes, too: those beyond `MAX_CAUSES` are counted as `other`."""

    results: int = 0
    dead_letters: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cut_answers: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    def add(self, output: Result | DeadLetter) -> None:
        """Count one more."""
        if isinstance(output, DeadLetter):
            self.dead_letters += 1
            known = output.cause in self.failed or len(self.failed) < MAX_CAUSES
            self.failed[output.cause if known else OTHER] += 1
            return
        self.results += 1
        self.prompt_tokens += output.usage.prompt_tokens
        self.completion_tokens += output.usage.completion_tokens
        self.cut_answers += output.finish_reason == CUT

    def encode(self) -> dict[str, Any]:
        """The counts as a JSON object."""
        # Not `asdict`: it makes a copy of a Counter by counting its items.
        names = (each.name for each in fields(self) if each.name != "failed")
        return {**{name: getattr(self, name) for name in names}, "failed": dict(self.failed)}

    @classmethod
    def decode(cls, values: dict[str, Any]) -> WrittenCounts:
        """The counts of which `encode` made `values`."""
        return cls(**{**values, "failed": Counter(values["failed"])})

    @classmethod
    def sum(cls, parts: Iterable[WrittenCounts]) -> WrittenCounts:
        """All `parts` together."""
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
    """What one of a sink's `subtasks` wrote in a run, noted when the job has come to its end. `what`:
    `RESULTS` or `DEAD_LETTERS`."""

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
    """What all subtasks of the sink for `what` wrote; None if some have left no note. (One that came to its
    end before a restart has left a note, and another one if it was started again.)"""
    found = [note for note in notes if note.what == what]
    if not found or len(found) < max(note.subtasks for note in found):
        return None
    return WrittenCounts.sum(note.counts for note in found)
