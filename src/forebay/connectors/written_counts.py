"""Counts of what a sink has written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from forebay.engine.answer import CUT
from forebay.engine.prices import to_pico
from forebay.flink.metric_names import MAX_LABEL_VALUES, OTHER
from forebay.json_numbers import dump_json, read_json
from forebay.records import DeadLetter, Result

MAX_KEYS = 100


@dataclass(slots=True)
class WrittenCosts:
    """Cost in 10^-12 of the currency; None before the first output that has one.

    Beyond `MAX_KEYS` keys, `by_key` has all with more than 1/`MAX_KEYS` of the total, each too low by at
    most that share (Misra and Gries, 1982).
    """

    pico: int | None = None
    by_key: dict[str, int] = field(default_factory=dict)

    def add(self, key: str | None, pico: int | None) -> None:
        self.merge(WrittenCosts(pico, {key: pico} if key and pico else {}))

    def add_line(self, line: Mapping[str, Any]) -> None:
        cost = line.get("cost")
        self.add(line.get("key"), None if cost is None else to_pico(cost))

    def merge(self, other: WrittenCosts) -> None:
        if other.pico is None:
            return
        self.pico = (self.pico or 0) + other.pico
        for key, pico in other.by_key.items():
            self.by_key[key] = self.by_key.get(key, 0) + pico
        if len(self.by_key) > MAX_KEYS:
            least = sorted(self.by_key.values(), reverse=True)[MAX_KEYS]
            self.by_key = {key: pico - least for key, pico in self.by_key.items() if pico > least}


@dataclass(slots=True)
class WrittenCounts:
    """Programs may choose causes; those after the first `MAX_LABEL_VALUES` are counted as `other`."""

    results: int = 0
    dead_letters: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cut_answers: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    costs: WrittenCosts = field(default_factory=WrittenCosts)

    def add(self, output: Result | DeadLetter) -> None:
        self.costs.add(output.key, output.cost_pico)
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
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**values, "failed": dict(self.failed), "costs": (self.costs.pico, self.costs.by_key)}

    @classmethod
    def decode(cls, values: dict[str, Any]) -> WrittenCounts:
        return cls(**{**values, "failed": Counter(values["failed"]), "costs": WrittenCosts(*values["costs"])})

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
            total.costs.merge(part.costs)
        return total


@dataclass(frozen=True, slots=True)
class EndNote:
    """Counts of one of a sink's `subtasks`, recorded when the job ends."""

    what: str
    subtasks: int
    counts: WrittenCounts

    def encode(self) -> str:
        note = {"what": self.what, "subtasks": self.subtasks, "counts": self.counts.encode()}
        return dump_json(note).decode()

    @classmethod
    def decode(cls, text: bytes | str) -> EndNote:
        values = read_json(text if isinstance(text, bytes) else text.encode())
        return cls(values["what"], values["subtasks"], WrittenCounts.decode(values["counts"]))


def noted_counts(notes: Iterable[EndNote], what: str) -> WrittenCounts | None:
    """None if some subtask left no note. One that restarted after its end has left two."""
    found = [note for note in notes if note.what == what]
    if not found or len(found) < max(note.subtasks for note in found):
        return None
    return WrittenCounts.sum(note.counts for note in found)
