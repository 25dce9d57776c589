"""What has come of each event so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from forebay.bench.stream.events import ID
from forebay.bench.stream.pipeline import Places
from forebay.bench.stream.records import EventRecord
from forebay.bench.stream.sinks import Committed, CommittedFiles, read_letter, read_result

PART = "/"
"""Stands in the id of an event's further results, before their number."""


class EventBook:
    """Holds the sinks against the events that were sent. Not for several threads."""

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
        self.strangers = 0
        self.earlier_doubled = 0

    def expect(self, ids: Sequence[str]) -> None:
        """These events are sent now; those before are over."""
        self._known.update(ids)
        self._open = set(ids)
        self._now = set(ids)
        self._failed = self.strangers = self.earlier_doubled = 0

    def look(self) -> None:
        """Take up what was committed since the last look."""
        for at_us, line in self._results.look():
            self._take(read_result(line, at_us))
        for at_us, line in self._letters.look():
            self._take(read_letter(line, at_us, ID))

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

    def done(self, ids: Sequence[str]) -> tuple[int, int]:
        """How many of the events that were expected last have a result or a dead letter, and how many have a
        dead letter."""
        return len(ids) - len(self._open), self._failed

    def failures(self, ids: Sequence[str]) -> list[str]:
        """Why events became dead letters."""
        found = (self._found[id].error for id in ids if id in self._found)
        return [error for error in found if error is not None]

    def records(
        self,
        ids: Sequence[str],
        due_us: Sequence[int],
        emitted: Mapping[str, tuple[int, int]],
        began_us: int,
    ) -> tuple[EventRecord, ...]:
        """What was seen of these events, in seconds after `began_us`."""

        def after_s(at_us: int | None) -> float | None:
            return None if at_us is None else (at_us - began_us) / 1e6

        records = []
        for index, (id, due) in enumerate(zip(ids, due_us, strict=True)):
            free, wrote = emitted.get(id, (None, None))
            found = self._found.get(id)
            record = EventRecord(index, id, (due - began_us) / 1e6, after_s(free), after_s(wrote))
            record = replace(record, letters=self._letters_of.get(id, 0))
            records.append(record if found is None else _with(record, found, self._times.get(id, 0), after_s))
        return tuple(records)


def _with(
    record: EventRecord, found: Committed, times: int, after_s: Callable[[int | None], float | None]
) -> EventRecord:
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
        reissued=found.reissued,
        error=found.error,
        journaled=found.journaled,
    )
