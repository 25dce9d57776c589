"""The state of each event so far."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from forebay.bench.stream.events import ID
from forebay.bench.stream.pipeline import Places
from forebay.bench.stream.records import EventRecord
from forebay.bench.stream.sinks import Committed, CommittedFiles, read_letter, read_result
from forebay.bench.stream.windows import Sent

PART = "/"
"""In the ids of an event's further results, before their number."""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a load has come. `total`: events, or results that stand for many; `due`: so far; `done`:
    committed or given up; `failed`: dead letters."""

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
        """Start a new load with these events, in the order of their times."""
        ids = [each.id for each in sent]
        self._sent, self._due_us = sent, [each.due_us for each in sent]
        self._known.update(ids)
        self._open = set(ids)
        self._now = set(ids)
        self._failed = self.strangers = self.earlier_doubled = 0

    def look(self) -> None:
        """Read what was committed since the last call."""
        for at_us, line in self._results.look():
            self._take(read_result(line, at_us))
        for at_us, line in self._letters.look():
            self._take(read_letter(line, at_us, ID))

    @property
    def doubles(self) -> int:
        """Results and dead letters of all loads beyond the first of their event."""
        ids = {*self._times, *self._letters_of}
        return sum(self._times.get(id, 0) + self._letters_of.get(id, 0) - 1 for id in ids)

    def over(self, checkpoints_us: Sequence[int]) -> bool:
        """Whether the load is complete. `checkpoints_us`: trigger times of complete checkpoints."""
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
        """The load's events that were due by `until_us`, in seconds after `began_us`."""
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
    """A function from microseconds to seconds after `began_us`; None stays None."""
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
