"""What was sent, what is committed, and the state of each event."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from forebay.apps.summaries.plan import Windows
from forebay.apps.summaries.state import bounds, ends_of
from forebay.bench.stream.events import ID
from forebay.bench.stream.feed import now_us
from forebay.bench.stream.pipeline import Places
from forebay.bench.stream.records import EventRecord
from forebay.connectors.files.sink import COMMITTED
from forebay.json_numbers import read_json
from forebay.records import Timeline


@dataclass(frozen=True, slots=True)
class Sent:
    id: str
    due_us: int
    key: str | None = None


@dataclass(frozen=True, slots=True)
class KeyWindow:
    key: str
    start_ms: int
    end_ms: int
    events: tuple[Sent, ...] = field(compare=False)

    @property
    def name(self) -> str:
        return window_name(self.key, self.start_ms, self.end_ms)


def window_name(key: str, start_ms: int, end_ms: int, revision: int = 0) -> str:
    """Equal for repeats of a window's result."""
    return f"{key}@{start_ms}-{end_ms}" + (f" revision {revision}" if revision else "")


def key_windows(windows: Windows, events: Sequence[Sent]) -> list[KeyWindow]:
    """Ordered by end."""
    found = _sessions(windows, events) if windows.kind == "session" else _aligned(windows, events)
    return sorted(found, key=lambda each: (each.end_ms, each.key))


def _aligned(windows: Windows, events: Iterable[Sent]) -> Iterator[KeyWindow]:
    held: dict[tuple[str, int], list[Sent]] = {}
    for event in events:
        if event.key is not None:
            for end_ms in ends_of(windows, bounds(windows, event.due_us // 1000)[0]):
                held.setdefault((event.key, end_ms), []).append(event)
    for (key, end_ms), own in held.items():
        yield KeyWindow(key, end_ms - windows.size_ms, end_ms, tuple(own))


def _sessions(windows: Windows, events: Iterable[Sent]) -> Iterator[KeyWindow]:
    by_key: dict[str, list[Sent]] = {}
    for event in events:
        if event.key is not None:
            by_key.setdefault(event.key, []).append(event)
    for key, own in by_key.items():
        begin = 0
        for at, event in enumerate(own):
            end_ms = event.due_us // 1000 + windows.gap_ms
            if at + 1 == len(own) or own[at + 1].due_us // 1000 >= end_ms:
                yield KeyWindow(key, own[begin].due_us // 1000, end_ms, tuple(own[begin : at + 1]))
                begin = at + 1


def least_span_s(windows: Windows, out_of_orderness_s: float) -> float | None:
    """Seconds of events until the first window is surely over; None if none may be."""
    return windows.step_ms / 1000 + out_of_orderness_s if windows.size_ms else None


COARSE_CLOCK = 5


@dataclass(frozen=True, slots=True)
class Committed:
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

    A line's time is its file's last status change.
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
    found = read_json(line)
    id = found.get("id")
    if id is None:
        try:
            id = read_json(found["input"].encode()).get(id_field)
        except (ValueError, KeyError, AttributeError):
            id = None
    detail = " ".join(str(found["detail"]).split())[:300]
    return Committed(id, at_us, attempts=found["attempts"], error=f"{found['cause']}: {detail}")


PART = "/"
"""Before the number in the ids of an event's further results."""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    total: int
    due: int
    done: int
    failed: int


class EventBook:
    """Compares the sinks with the events that were sent. Not thread-safe."""

    def __init__(self, places: Places) -> None:
        self._results = CommittedFiles(places.results)
        self._letters = CommittedFiles(places.letters)
        self._known: set[str] = set()
        self._open: set[str] = set()
        self._failed = 0
        self._found: dict[str, Committed] = {}
        self._times: dict[str, int] = {}
        self._letters_of: dict[str, int] = {}
        self._now: set[str] = set()
        self._sent: Sequence[Sent] = ()
        self._due_us: list[int] = []
        self.strangers = 0
        self.earlier_doubled = 0

    def expect(self, sent: Sequence[Sent]) -> None:
        """`sent` is ordered by time."""
        ids = [each.id for each in sent]
        self._sent, self._due_us = sent, [each.due_us for each in sent]
        self._known.update(ids)
        self._open = set(ids)
        self._now = set(ids)
        self._failed = self.strangers = self.earlier_doubled = 0

    def look(self) -> None:
        for at_us, line in self._results.look():
            self._take(read_result(line, at_us))
        for at_us, line in self._letters.look():
            self._take(read_letter(line, at_us, ID))

    @property
    def doubles(self) -> int:
        ids = {*self._times, *self._letters_of}
        return sum(self._times.get(id, 0) + self._letters_of.get(id, 0) - 1 for id in ids)

    def over(self, checkpoints_us: Sequence[int], now_us: int) -> bool:
        return not self._open

    def _take(self, found: Committed) -> None:
        if found.id is None or found.id.partition(PART)[0] not in self._known:
            self.strangers += 1
            return
        if found.id not in self._known:
            return  # A further result of its event.
        if found.id in self._found and found.id not in self._now:
            self.earlier_doubled += 1
        times = self._times if found.error is None else self._letters_of
        times[found.id] = times.get(found.id, 0) + 1
        if found.error is not None and found.id in self._open:
            self._failed += 1
        self._found.setdefault(found.id, found)
        self._open.discard(found.id)

    def progress(self, now_us: int) -> StreamProgress:
        total = len(self._sent)
        return StreamProgress(total, self._due(now_us), total - len(self._open), self._failed)

    def failures(self) -> list[str]:
        found = (self._found[each.id].error for each in self._sent if each.id in self._found)
        return [error for error in found if error is not None]

    def records(
        self, emitted: Mapping[str, tuple[int, int]], began_us: int, until_us: int
    ) -> tuple[EventRecord, ...]:
        after_s = seconds_after(began_us)
        records = []
        for index, sent in enumerate(self._sent[: self._due(until_us)]):
            free, wrote = emitted.get(sent.id, (None, None))
            found = self._found.get(sent.id)
            record = EventRecord(
                index, sent.id, (sent.due_us - began_us) / 1e6, after_s(free), after_s(wrote)
            )
            record = replace(record, letters=self._letters_of.get(sent.id, 0))
            times = self._times.get(sent.id, 0)
            records.append(record if found is None else with_found(record, found, times, after_s))
        return tuple(records)

    def _due(self, now_us: int) -> int:
        return bisect_right(self._due_us, now_us)


AfterS = Callable[[int | None], float | None]
Record = TypeVar("Record", bound=EventRecord)


def seconds_after(began_us: int) -> AfterS:
    return lambda at_us: None if at_us is None else (at_us - began_us) / 1e6


def with_found(record: Record, found: Committed, times: int, after_s: AfterS) -> Record:
    line = found.timeline
    if line is not None:
        record = replace(
            record,
            read_s=after_s(line.read_us),
            accepted_s=after_s(line.accepted_us),
            sent_s=after_s(line.sent_us),
            first_token_s=after_s(line.first_token_us),
            answered_s=after_s(line.answered_us),
            left_s=after_s(line.left_us),
        )
    prompt, completion, cached = found.usage
    return replace(
        record,
        committed_s=after_s(found.at_us) if found.error is None else None,
        results=times,
        attempts=found.attempts,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        restored=found.restored,
        error=found.error,
        journaled=found.journaled,
    )
