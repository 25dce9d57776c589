"""The sink of a recovery run: watched while it grows, compared with the input at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from forebay.clients.s3.location import Location
from forebay.connectors.files.sink import Part, committed_parts
from forebay.json_numbers import read_json

NUMBER = "n"
"""Field of an event with its number."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Outcome for `events` events, numbered from 0.

    `lost`: in no result and no dead letter. `duplicated`: surplus lines of both. `wrong`: lines that are not
    an event of the input, or have another event's answer.
    """

    events: int
    results: int
    dead_letters: int
    lost: int
    duplicated: int
    wrong: int
    restored: int

    @property
    def exact(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong or self.dead_letters)


KeyOf = Callable[[dict[str, Any]], Hashable | None]
"""The expected event that a line is about; None: none, or with another answer."""


@dataclass(frozen=True, slots=True)
class Expected:
    """How many events are expected, and the functions that find the event of a line. Without `of_letter`, an
    event with a dead letter is also lost."""

    events: int
    of_result: KeyOf
    of_letter: KeyOf | None = None


def numbered(events: int, is_answer: Callable[[int, object], bool] = lambda _n, _answer: True) -> Expected:
    """Events numbered from 0, each with one result or dead letter that has its fields."""

    def of_result(line: dict[str, Any]) -> int | None:
        number = _number(line.get("fields"), events)
        return number if number is not None and is_answer(number, line.get("answer")) else None

    return Expected(events, of_result, lambda line: _number(_object(line.get("input")), events))


def tally(expected: Expected, results: Iterable[bytes], dead_letters: Iterable[bytes]) -> Tally:
    """Compare the lines of a sink with what is expected."""
    seen: Counter[Hashable] = Counter()
    lines = letters = wrong = restored = 0
    for value in map(_object, results):
        lines += 1
        if (key := expected.of_result(value)) is None:
            wrong += 1
            continue
        seen[key] += 1
        restored += value.get("restored") is True
    for value in map(_object, dead_letters):
        letters += 1
        if expected.of_letter is None:
            continue
        if (key := expected.of_letter(value)) is None:
            wrong += 1
        else:
            seen[key] += 1
    return Tally(
        events=expected.events,
        results=lines,
        dead_letters=letters,
        lost=expected.events - len(seen),
        duplicated=seen.total() - len(seen),
        wrong=wrong,
        restored=restored,
    )


def _object(line: object) -> dict[str, Any]:
    if not isinstance(line, bytes | str):
        return {}
    try:
        value = read_json(line.encode() if isinstance(line, str) else line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(fields: object, events: int) -> int | None:
    number = fields.get(NUMBER) if isinstance(fields, dict) else None
    return number if type(number) is int and 0 <= number < events else None


@dataclass(frozen=True, slots=True)
class Seen:
    """A committed file: wall-clock time of its last write, its lines, and how many of them needed more than
    one attempt."""

    written_s: float
    lines: int
    retried: int


class SinkWatch:
    """A sink's committed files; each line is read once."""

    def __init__(self, path: Location) -> None:
        self._path = path
        self._sizes: dict[str, int] = {}
        self._seen: list[Seen] = []

    def look(self) -> int:
        """Read new lines; returns the number of committed results so far."""
        for part in committed_parts(self._path):
            begin = self._sizes.get(part.name, 0)
            lines = list(part.lines(begin)) if part.size > begin else []
            if lines:
                retried = sum(attempts_of(line) > 1 for line in lines)
                self._seen.append(Seen(part.written_ns / 1e9, len(lines), retried))
                self._sizes[part.name] = begin + sum(len(line) + 1 for line in lines)
        return sum(seen.lines for seen in self._seen)

    def written_after(self, moment_s: float, *, retried: bool = False) -> bool:
        return any(
            part.written_s > moment_s and (part.retried if retried else part.lines) for part in self._seen
        )


class StoreWatch:
    """The same for a sink in an object store, which has times in whole seconds."""

    def __init__(self, path: Location) -> None:
        self._path = path
        self._parts: dict[Part, tuple[float, Seen]] = {}

    def look(self) -> int:
        for part in committed_parts(self._path):
            if part not in self._parts:
                lines = list(part.lines())
                retried = sum(attempts_of(line) > 1 for line in lines)
                self._parts[part] = time.time(), Seen(part.written_ns / 1e9, len(lines), retried)
        return sum(seen.lines for _, seen in self._parts.values())

    def written_after(self, moment_s: float, *, retried: bool = False, same_job: bool = False) -> bool:
        before = {_job(part) for part, (seen_s, _) in self._parts.items() if seen_s <= moment_s}
        return any(
            seen_s > moment_s
            and (seen.retried if retried else seen.lines and (same_job or _job(part) not in before))
            for part, (seen_s, seen) in self._parts.items()
        )


def _job(part: Part) -> str:
    return part.name.split("-")[1]


def number_of(line: bytes) -> int | None:
    fields = _object(line).get("fields")
    number = fields.get(NUMBER) if isinstance(fields, dict) else None
    return number if type(number) is int else None


def attempts_of(line: bytes) -> int:
    attempts = _object(line).get("attempts")
    return attempts if isinstance(attempts, int) else 0
