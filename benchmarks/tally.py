"""The sink of a recovery run: watched while it grows, compared with the input at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forebay.clients.s3.location import Location
from forebay.connectors.files.sink import Part, committed_parts
from forebay.json_numbers import read_json

NUMBER = "n"
"""The field of an event that holds its number."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of `events` events, numbered from 0.

    `lost`: in no line of the results or the dead letters. `duplicated`: lines too many, over both.
    `wrong`: lines that are no event of the input, or whose answer belongs to another one.
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
        """Whether every event gave its result exactly once."""
        return not (self.lost or self.duplicated or self.wrong or self.dead_letters)


def compare(
    events: int,
    results: Iterable[bytes],
    dead_letters: Iterable[bytes],
    is_answer: Callable[[int, object], bool] = lambda _number, _answer: True,
) -> Tally:
    """Hold the lines of a sink against the input. `is_answer(number, answer)` judges an answer."""
    seen: Counter[int] = Counter()
    lines = letters = wrong = restored = 0
    for line in results:
        lines += 1
        value = _object(line)
        number = _number(value.get("fields"), events)
        if number is None or not is_answer(number, value.get("answer")):
            wrong += 1
            continue
        seen[number] += 1
        restored += value.get("restored") is True
    for line in dead_letters:
        letters += 1
        number = _number(_object(_object(line).get("input")), events)
        if number is None:
            wrong += 1
        else:
            seen[number] += 1
    return Tally(
        events=events,
        results=lines,
        dead_letters=letters,
        lost=events - len(seen),
        duplicated=seen.total() - len(seen),
        wrong=wrong,
        restored=restored,
    )


def _object(line: object) -> dict[str, object]:
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
    """A committed file: when its last line was written (wall clock), its lines, and how many of those are
    answers to a request that was sent more than once."""

    written_s: float
    lines: int
    retried: int


class SinkWatch:
    """A sink's committed files; each is read once, for a committed file never changes."""

    def __init__(self, path: Location) -> None:
        self._path = path
        self._parts: dict[Part, Seen] = {}

    def look(self) -> int:
        """Read what is new; the number of results committed so far."""
        for part in committed_parts(self._path):
            if part not in self._parts:
                lines = list(part.lines())
                retried = sum(attempts_of(line) > 1 for line in lines)
                self._parts[part] = Seen(part.written_ns / 1e9, len(lines), retried)
        return sum(part.lines for part in self._parts.values())

    def written_after(self, moment_s: float, *, retried: bool = False) -> bool:
        """Whether a result is committed that was written after `moment_s`; with `retried`, one that took more
        than one try. What a restore commits was written before the kill, and does not count."""
        return any(
            part.written_s > moment_s and (part.retried if retried else part.lines)
            for part in self._parts.values()
        )


class StoreWatch:
    """The same for a sink in an object store, which tells times in whole seconds: what was written after a
    moment is told by the job that wrote it, which a restart changes, and by when it was seen first."""

    def __init__(self, path: Location) -> None:
        self._path = path
        self._parts: dict[Part, tuple[float, Seen]] = {}

    def look(self) -> int:
        """As `SinkWatch.look`."""
        for part in committed_parts(self._path):
            if part not in self._parts:
                lines = list(part.lines())
                retried = sum(attempts_of(line) > 1 for line in lines)
                self._parts[part] = time.time(), Seen(part.written_ns / 1e9, len(lines), retried)
        return sum(seen.lines for _, seen in self._parts.values())

    def written_after(self, moment_s: float, *, retried: bool = False, same_job: bool = False) -> bool:
        """As `SinkWatch.written_after`; `same_job`: nothing was killed that ends a job."""
        before = {_job(part) for part, (seen_s, _) in self._parts.items() if seen_s <= moment_s}
        return any(
            seen_s > moment_s
            and (seen.retried if retried else seen.lines and (same_job or _job(part) not in before))
            for part, (seen_s, seen) in self._parts.items()
        )


def _job(part: Part) -> str:
    """As far as a part's name has it: `part-JOB-WRITER-N.jsonl`."""
    return part.name.split("-")[1]


def number_of(line: bytes) -> int | None:
    """The number of the event that a result answers, by its own account."""
    fields = _object(line).get("fields")
    number = fields.get(NUMBER) if isinstance(fields, dict) else None
    return number if type(number) is int else None


def attempts_of(line: bytes) -> int:
    """How many tries a result took, by its own account."""
    attempts = _object(line).get("attempts")
    return attempts if isinstance(attempts, int) else 0
