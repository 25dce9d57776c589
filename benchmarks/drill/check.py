"""What came out against what must come out: nothing lost, doubled, wrong or out of order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import orjson

from benchmarks.drill.workload import Expected
from benchmarks.tally import NUMBER

SHOWN = 5
NUMBERED = re.compile(rf'"{NUMBER}":\s*(\d+)')


def check(
    expected: Expected,
    results: Iterable[bytes],
    letters: Iterable[bytes],
    name_of: Callable[[Mapping[str, Any]], str | None],
) -> tuple[str, ...]:
    """One sentence for each kind of mistake; none where all is right. Results are in the order in which they
    were committed, as far as one key goes."""
    return tuple(_problems(expected, [_object(line) for line in results], letters, name_of))


def _problems(
    expected: Expected,
    results: Sequence[Mapping[str, Any]],
    letters: Iterable[bytes],
    name_of: Callable[[Mapping[str, Any]], str | None],
) -> Iterator[str]:
    names = [name_of(line) for line in results]
    seen = Counter(name for name in names if name is not None)
    yield from _told(
        "nameless results", [str(dict(r))[:200] for r, n in zip(results, names, strict=True) if n is None]
    )
    yield from _told("lost", [name for name in expected.results if name not in seen])
    yield from _told("doubled", [f"{name} ({n} times)" for name, n in seen.items() if n > 1])
    yield from _told("not expected", [name for name in seen if name not in expected.results])
    wrong = [
        f"{name}: {str(line.get('answer'))[:80]} instead of {str(expected.results[name])[:80]}"
        for name, line in zip(names, results, strict=True)
        if name is not None and name in expected.results and line.get("answer") != expected.results[name]
    ]
    yield from _told("wrong", wrong)
    refused = Counter(_letter_name(_object(line), expected) for line in letters)
    yield from _told("dead letters lost", sorted(expected.letters - set(refused)))
    yield from _told("dead letters doubled", [f"{name} ({n} times)" for name, n in refused.items() if n > 1])
    yield from _told("dead letters not expected", [name for name in refused if name not in expected.letters])
    yield from _told("out of order", list(_disorder(expected, [name for name in names if name is not None])))


def _disorder(expected: Expected, names: Sequence[str]) -> Iterator[str]:
    for key, queue in expected.queues.items():
        place = {name: index for index, name in enumerate(queue)}
        came = [name for name in names if name in place]
        for before, after in pairwise(came):
            if place[before] > place[after]:
                yield f"{before} before {after} under {key}"


def _letter_name(line: Mapping[str, Any], expected: Expected) -> str:
    # The input of a large record is cut, and then no JSON.
    number = NUMBERED.search(str(line.get("input", "")))
    name = str(number and number[1])
    if name in expected.letters:
        return name
    # Rows of CSV begin with the number.
    first = str(line.get("input", "")).partition(",")[0]
    return (
        first
        if first in expected.letters
        else f"{line.get('cause')}: {str(line.get('detail'))[:120]} ({name})"
    )


def _told(what: str, which: Sequence[str]) -> Iterator[str]:
    if which:
        more = f" and {len(which) - SHOWN} more" if len(which) > SHOWN else ""
        yield f"{len(which)} {what}: {', '.join(which[:SHOWN])}{more}"


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
