"""Compares actual with expected output: nothing lost, doubled, wrong, out of order or silent.

Each event must end in exactly one place: a result with its answer, a dead letter with its cause, or a range
of records that the command itself reports as deleted unread.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.drill.workload import Expected, input_number
from forebay.json_numbers import read_json

SHOWN = 5
GAP = re.compile(r"([\w.-]+)/(\d+): offsets (\d+) to (\d+) were deleted unread")
Place = tuple[str, int, int]
"""A record's topic, partition and offset."""


@dataclass(frozen=True)
class Found:
    """The output of a scenario. `skipped`: names of events that the command reported as deleted;
    `deleted`: of those that were deleted before they were read, or may have been."""

    results: Iterable[bytes]
    letters: Iterable[bytes]
    assignments: Iterable[bytes] = ()
    skipped: Collection[str] = ()
    deleted: Collection[str] = ()


def check(
    expected: Expected, found: Found, name_of: Callable[[Mapping[str, Any]], str | None]
) -> tuple[str, ...]:
    """One sentence for each kind of mistake; empty if all is right."""
    return tuple(_problems(expected, found, name_of))


def _problems(
    expected: Expected, found: Found, name_of: Callable[[Mapping[str, Any]], str | None]
) -> Iterator[str]:
    results = [_object(line) for line in found.results]
    names = [name_of(line) for line in results]
    seen = Counter(name for name in names if name is not None)
    skipped = set(found.skipped)
    yield from _fault(
        "nameless results", [str(dict(r))[:200] for r, n in zip(results, names, strict=True) if n is None]
    )
    yield from _fault("lost", [name for name in expected.results if name not in seen and name not in skipped])
    yield from _fault("doubled", [f"{name} ({n} times)" for name, n in seen.items() if n > 1])
    yield from _fault("not expected", [name for name in seen if name not in expected.results])
    wrong = [
        f"{name}: {str(line.get('answer'))[:80]} instead of {str(expected.results[name])[:80]}"
        for name, line in zip(names, results, strict=True)
        if name is not None and name in expected.results and line.get("answer") != expected.results[name]
    ]
    yield from _fault("wrong", wrong)
    letters = [(_letter_name(line, expected), line) for line in map(_object, found.letters)]
    refused = Counter(name for name, _ in letters)
    missing = set(expected.letters) - set(refused) - skipped
    yield from _fault("dead letters lost", sorted(missing))
    yield from _fault("dead letters doubled", [f"{name} ({n} times)" for name, n in refused.items() if n > 1])
    yield from _fault("dead letters not expected", [name for name in refused if name not in expected.letters])
    causes = [
        f"{name}: {line.get('cause')} instead of {expected.letters[name]}: {str(line.get('detail'))[:80]}"
        for name, line in letters
        if name in expected.letters and line.get("cause") != expected.letters[name]
    ]
    yield from _fault("dead letters with a wrong cause", causes)
    yield from _fault("named as deleted, and there", sorted(skipped & (set(seen) | set(refused))))
    yield from _fault("named as deleted, and were not", sorted(skipped - set(found.deleted)))
    yield from _misplaced(expected, [_object(line) for line in found.assignments])
    yield from _fault("out of order", list(_disorder(expected, [name for name in names if name is not None])))


def _misplaced(expected: Expected, lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    seen = Counter(str(line.get("id")) for line in lines)
    yield from _fault("texts without a topic", [id for id in expected.assignments if id not in seen])
    yield from _fault("texts with several topics", [id for id, n in seen.items() if n > 1])
    wrong = [
        f"{line.get('id')}: {str(line.get('answer'))[:80]}"
        for line in lines
        if (line.get("id"), _topic(line.get("answer"))) not in expected.assignments.items()
    ]
    yield from _fault("texts with a wrong topic", wrong)


def _topic(answer: Any) -> Any:
    return answer.get("topic", answer) if isinstance(answer, dict) else answer


def skipped_places(texts: Iterable[str]) -> frozenset[Place]:
    return frozenset(
        (gap[1], int(gap[2]), offset)
        for text in texts
        for gap in GAP.finditer(text)
        for offset in range(int(gap[3]), int(gap[4]) + 1)
    )


def check_report(report: Mapping[str, Any], results: int | None, letters: int | None) -> tuple[str, ...]:
    """Compare the document of `--json` with the records that this run added to the sinks (None: unknown), and
    its number of deleted records with the ranges that it reports."""
    problems = []
    for name, count in (("results", results), ("dead_letters", letters)):
        if count is not None and report.get(name) != count:
            problems.append(f"the report has {report.get(name)} {name}, the run wrote {count}")
    named = sum(int(gap[4]) - int(gap[3]) + 1 for gap in GAP.finditer(" ".join(report.get("gaps", ()))))
    if report.get("skipped_records", 0) != named:
        problems.append(f"the report has {report['skipped_records']} skipped records, its ranges {named}")
    return tuple(problems)


def _disorder(expected: Expected, names: Sequence[str]) -> Iterator[str]:
    for key, queue in expected.queues.items():
        place = {name: index for index, name in enumerate(queue)}
        came = [name for name in names if name in place]
        for before, after in pairwise(came):
            if place[before] > place[after]:
                yield f"{before} before {after} under {key}"


def _letter_name(line: Mapping[str, Any], expected: Expected) -> str:
    name = input_number(line)
    if name is not None and name in expected.letters:
        return name
    return f"{line.get('cause')}: {str(line.get('detail'))[:120]} ({name})"


def _fault(what: str, which: Sequence[str]) -> Iterator[str]:
    if which:
        more = f" and {len(which) - SHOWN} more" if len(which) > SHOWN else ""
        yield f"{len(which)} {what}: {', '.join(which[:SHOWN])}{more}"


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        value = read_json(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
