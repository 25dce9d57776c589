"""Reads what a pipeline has committed, and when it became visible."""

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
"""Linux's CLOCK_REALTIME_COARSE, the clock of file times."""


@dataclass(frozen=True, slots=True)
class Committed:
    """One line of a sink. `at_us`: when it was visible; `id` None: not an event of ours. `error`: the cause
    of a dead letter, with its detail."""

    id: str | None
    at_us: int
    timeline: Timeline | None = None
    attempts: int = 0
    usage: tuple[int, int, int] = (0, 0, 0)
    restored: bool = False
    error: str | None = None
    journaled: bool = False


def file_clock_s() -> float:
    """The resolution of file times in seconds."""
    try:
        return time.clock_getres(COARSE_CLOCK)
    except OSError:
        return 0.01


class CommittedFiles:
    """The lines of a folder of JSON lines, once each. Not thread-safe.

    Lines become visible when their file is renamed or grows; that is its last status change. If the file
    system does not keep that, the time is between two calls of `look`.
    """

    def __init__(self, folder: Path, *, now: Callable[[], int] = now_us) -> None:
        self._folder = folder
        self._now = now
        self._seen: dict[str, int] = {}
        self._looked_us = now()

    def look(self) -> Iterator[tuple[int, bytes]]:
        """New lines since the last call, each with the time at which it became visible."""
        before_us, self._looked_us = self._looked_us, self._now()
        for path in sorted(self._folder.glob("part-*.jsonl")):
            status, seen = path.stat(), self._seen.get(path.name, 0)
            if status.st_size == seen or not COMMITTED.fullmatch(path.name):
                continue
            at_us = min(max(status.st_ctime_ns // 1000, before_us - round(file_clock_s() * 1e6)), self._now())
            with path.open("rb") as file:
                file.seek(seen)
                text = file.read(status.st_size - seen)
            complete = text[: text.rfind(b"\n") + 1]
            self._seen[path.name] = seen + len(complete)
            for line in complete.splitlines():
                yield at_us, line


def read_result(line: bytes, at_us: int) -> Committed:
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
    """Parse a dead letter. If it has no id yet, the id is in its untouched input."""
    found = read_json(line)
    id = found.get("id")
    if id is None:
        try:
            id = read_json(found["input"].encode()).get(id_field)
        except (ValueError, KeyError, AttributeError):
            id = None
    detail = " ".join(str(found["detail"]).split())[:300]
    return Committed(id, at_us, attempts=found["attempts"], error=f"{found['cause']}: {detail}")
