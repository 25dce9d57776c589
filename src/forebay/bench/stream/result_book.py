"""The state of results that each stand for many events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forebay.apps.summaries.plan import Windows
from forebay.apps.summaries.settings import SummarySpec
from forebay.apps.topics.settings import ASKED as ASKED_TOPICS
from forebay.apps.topics.settings import TopicsSpec
from forebay.apps.trends.settings import ASKED as ASKED_TRENDS
from forebay.apps.trends.settings import TrendsSpec
from forebay.bench.stream.book import (
    Committed,
    EventBook,
    KeyWindow,
    Sent,
    StreamProgress,
    key_windows,
    read_letter,
    read_result,
    seconds_after,
    window_name,
    with_found,
)
from forebay.bench.stream.events import ID
from forebay.bench.stream.pipeline import Places
from forebay.bench.stream.records import ResultRecord
from forebay.json_numbers import read_json
from forebay.pipeline.spec import PipelineSpec

SETTLE_S = 2.0
"""How long a detector may still work on its last batch."""
SETTLED_CHECKPOINTS = 2
"""Results before the first checkpoint are committed soon after it, and before the second is complete."""
ANSWERED = ("why", "label")


@dataclass(frozen=True, slots=True)
class ManyToOne:
    """`windows`: each has one result; None if unknown. `late_s`: event time behind the newest event.
    `asked`: kinds of results about which the model is asked. `interval_s`: commits happen within this
    time."""

    windows: Windows | None = None
    late_s: float = 0.0
    asked: tuple[str, ...] = ()
    interval_s: float = 5.0

    @classmethod
    def of(cls, spec: PipelineSpec) -> ManyToOne | None:
        """None if each result belongs to one event."""
        application, interval_s = spec.application, spec.checkpoint.interval_s
        if isinstance(application, SummarySpec):
            plan, late = application.plan(), spec.event_time
            # With processing time, an event may be late for a window that has not ended.
            known = plan.windows.kind != "rolling" and application.idle_s is None
            late_s = 0.0 if late is None else late.out_of_orderness_s
            return cls(plan.windows if known else None, late_s, (), interval_s)
        if isinstance(application, TrendsSpec):
            wait_s = application.settings().tolerance.wait_ms / 1000
            return cls(None, wait_s, ASKED_TRENDS if application.labels else (), interval_s)
        if isinstance(application, TopicsSpec):
            return cls(None, application.wait_s, ASKED_TOPICS if application.labels else (), interval_s)
        return None


@dataclass(frozen=True, slots=True)
class SinkResult:
    name: str
    due_us: int
    found: Committed
    asks: str | None = None
    stands_for: int | None = None
    given_up: int = 0


def read_sink_result(line: bytes, at_us: int, asked: Sequence[str]) -> SinkResult:
    found, value = read_result(line, at_us), read_json(line)
    answer: Mapping[str, Any] = value["answer"]
    if answer.get("type") == "summary":
        window = answer["window"]
        name = window_name(value["key"], window["start_ms"], window["end_ms"], answer["revision"])
        if window["kind"] in ("tumbling", "session"):
            # All of its calls; those of shared panes and of running windows count once.
            usage = answer["prompt_tokens"], answer["completion_tokens"], found.usage[2]
            found = replace(found, usage=usage)
        return SinkResult(
            name, window["end_ms"] * 1000, found, stands_for=answer["events"], given_up=answer["failed"]
        )
    kind, due_us = answer["kind"], value["time_ms"] * 1000
    if kind in ANSWERED:
        return SinkResult(_answer_name(value["position"]), due_us, found)
    return SinkResult(value["id"], due_us, found, asks=_answer_name(value["id"]) if kind in asked else None)


def _answer_name(id: str) -> str:
    return f"answer about {id}"


class ResultBook(EventBook):
    """Compares the sinks with the windows of the sent events. Not thread-safe."""

    def __init__(self, places: Places, kind: ManyToOne) -> None:
        super().__init__(places)
        self._kind = kind
        self._by_name: dict[str, SinkResult] = {}
        self._new: set[str] = set()
        self._known_windows: set[str] = set()
        self._windows: dict[str, KeyWindow] = {}
        self._waiting: Sequence[Sent] = ()
        self._answers: dict[str, int] = {}
        self._begin_us = 0
        self.left_open = 0

    def expect(self, sent: Sequence[Sent]) -> None:
        super().expect(sent)
        self._new.clear()
        self._begin_us = sent[0].due_us
        self._answers = {}
        self._windows = {}
        if self._kind.windows is None:
            return
        closed_ms = sent[-1].due_us // 1000 - round(self._kind.late_s * 1000)
        found = key_windows(self._kind.windows, [*self._waiting, *sent])
        closed = [window for window in found if window.end_ms <= closed_ms]
        self._known_windows.update(window.name for window in closed)
        # Earlier windows had to wait until events arrived again.
        self._windows = {each.name: each for each in closed if each.end_ms * 1000 >= self._begin_us}
        left = {event for window in found if window.end_ms > closed_ms for event in window.events}
        self._waiting = sorted(left, key=lambda event: event.due_us)
        self.left_open = len(left & set(sent))

    @property
    def countable(self) -> bool:
        return self._kind.windows is not None

    def look(self) -> None:
        for at_us, line in self._results.look():
            self._take_result(read_sink_result(line, at_us, self._kind.asked))
        for at_us, line in self._letters.look():
            found = read_letter(line, at_us, ID)
            if found.id in self._known:
                self._take(found)
            elif found.id is not None and (name := _answer_name(found.id)) in self._answers:
                self._take_result(SinkResult(name, self._answers[name], found))

    def _take_result(self, result: SinkResult) -> None:
        name = result.name
        if name in self._by_name and name not in self._new and name not in self._windows:
            self.earlier_doubled += 1
        elif name not in self._by_name:
            self._by_name[name] = result
            self._new.add(name)
            if result.found.error is not None:
                self._failed += 1
        times = self._times if result.found.error is None else self._letters_of
        times[name] = times.get(name, 0) + 1
        if self.countable and name not in self._known_windows:
            self.strangers += 1
        if result.asks is not None:
            self._answers[result.asks] = result.due_us

    def over(self, checkpoints_us: Sequence[int], now_us: int) -> bool:
        """Whether nothing is missing, and nothing caused by the last event can still be in flight.

        What was read is committed within the interval; an idle job makes no checkpoints.
        """
        last_us = self._due_us[-1]
        after_us = last_us + round((self._kind.late_s + SETTLE_S) * 1e6)
        newest_us = max(checkpoints_us, default=0)
        quiet_us = 0 if newest_us <= last_us else now_us - max(after_us, newest_us)
        settled = (
            sum(at_us > after_us for at_us in checkpoints_us) >= SETTLED_CHECKPOINTS
            or quiet_us > SETTLED_CHECKPOINTS * self._kind.interval_s * 1e6
        )
        return settled and all(name in self._by_name for name in (*self._awaited(), *self._answers))

    def _awaited(self) -> dict[str, int]:
        counted = {
            name: sum(event.id not in self._letters_of for event in window.events)
            for name, window in self._windows.items()
        }
        return {name: count for name, count in counted.items() if count}

    def progress(self, now_us: int) -> StreamProgress:
        if not self.countable:
            due = self._due(now_us)
            unanswered = sum(name not in self._by_name for name in self._answers)
            return StreamProgress(len(self._sent), due, max(0, due - unanswered), self._failed)
        due = sum(window.end_ms * 1000 <= now_us for window in self._windows.values())
        done = sum(name in self._by_name for name in self._windows)
        return StreamProgress(len(self._windows), due, done, self._failed)

    def results(self, began_us: int, until_us: int) -> tuple[ResultRecord, ...]:
        """The results due in this time, in seconds after `began_us`."""
        counts = self._awaited()
        if self.countable:
            late_us = round(self._kind.late_s * 1e6)
            due_us = {name: self._windows[name].end_ms * 1000 for name in counts}
            due_us = {name: at_us for name, at_us in due_us.items() if at_us + late_us <= until_us}
        else:
            due_us = {name: self._by_name[name].due_us for name in self._new} | self._answers
            due_us = {name: at_us for name, at_us in due_us.items() if at_us >= began_us}
        ordered = sorted(due_us.items(), key=lambda each: (each[1], each[0]))
        return tuple(
            self._record(index, name, at_us, counts.get(name), began_us)
            for index, (name, at_us) in enumerate(ordered)
        )

    def _record(
        self, index: int, name: str, due_us: int, expected: int | None, began_us: int
    ) -> ResultRecord:
        after_s = seconds_after(began_us)
        record = ResultRecord(
            index, name, (due_us - began_us) / 1e6, letters=self._letters_of.get(name, 0), expected=expected
        )
        result = self._by_name.get(name)
        if result is None:
            return record
        record = with_found(record, result.found, self._times.get(name, 0), after_s)
        answered_s = record.left_s if record.answered_s is None else record.answered_s
        return replace(
            record,
            emitted_s=record.read_s,
            accepted_s=record.accepted_s,
            answered_s=answered_s,
            stands_for=result.stands_for,
            given_up=result.given_up,
        )


def book_of(places: Places, spec: PipelineSpec) -> EventBook:
    kind = ManyToOne.of(spec)
    return EventBook(places) if kind is None else ResultBook(places, kind)
