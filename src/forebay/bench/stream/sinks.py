"""What a pipeline has committed, and when a reader could see it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.bench.stream.feed import now_us
from forebay.connectors.files.sink import COMMITTED
from forebay.json_numbers import read_json
from forebay.records import Timeline

COARSE_CLOCK = 5
"""Linux's CLOCK_REALTIME_COARSE, from which file systems take their times."""


@dataclass(frozen=True, slots=True)
class Committed:
    """One line of a sink. `at_us`: when it was visible; `id` None: of no event of ours. `error`: the cause of
    a dead letter, with its detail."""

    id: str | None
    at_us: int
    timeline: Timeline | None = None
    attempts: int = 0
    usage: tuple[int, int, int] = (0, 0, 0)
    restored: bool = False
    error: str | None = None
    journaled: bool = False


def file_clock_s() -> float:
    """How coarse the times of files are, in seconds."""
    try:
        return time.clock_getres(COARSE_CLOCK)
    except OSError:
        return 0.01


class CommittedFiles:
    """The lines of a folder of JSON lines, once each. Not for several threads.

    A file is visible when it is renamed, and that is the time of its last change of status. Of a file system
    that does not keep that, the time lies between two looks.
    """

    def __init__(self, folder: Path, *, now: Callable[[], int] = now_us) -> None:
        self._folder = folder
        self._now = now
        self._seen: set[str] = set()
        self._looked_us = now()

    def look(self) -> Iterator[tuple[int, bytes]]:
        """The lines that came since the last look, each with the moment from which it was visible."""
        before_us, self._looked_us = self._looked_us, self._now()
        for path in sorted(self._folder.glob("part-*.jsonl")):
            if path.name in self._seen or not COMMITTED.fullmatch(path.name):
                continue
            self._seen.add(path.name)
            changed_us = path.stat().st_ctime_ns // 1000
            at_us = min(max(changed_us, before_us - round(file_clock_s() * 1e6)), self._now())
            for line in path.read_bytes().splitlines():
                yield at_us, line


def read_result(line: bytes, at_us: int) -> Committed:
    """What a line of results says."""
    found = read_json(line)
    times: dict[str, Any] | None = found.get("timeline")
    usage = found["usage"]
    return Committed(
        id=found["id"],
        at_us=at_us,
        timeline=None if times is None else Timeline(**times),
        attempts=found["attempts"],
        usage=(usage["prompt_tokens"], usage["completion_tokens"], usage["cached_tokens"]),
        restored=found["restored"],
        journaled=found.get("journaled", False),
    )


def read_letter(line: bytes, at_us: int, id_field: str) -> Committed:
    """What a line of dead letters says. One that had no id yet has it in its untouched input."""
    found = read_json(line)
    id = found.get("id")
    if id is None:
        try:
            id = read_json(found["input"].encode()).get(id_field)
        except (ValueError, KeyError, AttributeError):
            id = None
    detail = " ".join(str(found["detail"]).split())[:300]
    return Committed(id, at_us, attempts=found["attempts"], error=f"{found['cause']}: {detail}")
