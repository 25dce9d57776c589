"""Stream time for events with arbitrary times: which are too late, and which too far ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from forebay.codec import DAMAGED, damaged, pack_state, unpack_state
from forebay.stateful.rates import CLOCK_EVENTS, median

HELD_EVENTS = 9
"""So that a single wrong time cannot start a partition's clock."""
MOVED_EVENTS = 30
"""Of the last `CLOCK_EVENTS`, this many far ahead show that the partition has moved to another time."""


@dataclass(frozen=True, slots=True)
class Waiting:
    number: int
    time_ms: int
    data: bytes


class PartitionTime:
    """The median time of the last events, ignoring those farther away than `far_ms`.

    Events far ahead are held until 33 more have arrived. These show whether the held ones are wrong, or the
    partition has moved on after a gap. The caller sets `last_event_ms`, the time of the last event.
    """

    def __init__(self, far_ms: int, last_event_ms: int = 0) -> None:
        self._far_ms = far_ms
        self.last_event_ms = last_event_ms
        self.clock_ms: int | None = None
        self._count = 0
        self._times: deque[tuple[int, int]] = deque(maxlen=CLOCK_EVENTS)
        self._ahead: deque[bool] = deque(maxlen=CLOCK_EVENTS)
        # With their numbers in the partition.
        self._held: list[tuple[int, Waiting]] = []

    @property
    def lowest_ms(self) -> int | None:
        if self.clock_ms is not None:
            return self.clock_ms
        return min((each.time_ms for _, each in self._held), default=None)

    def take(self, event: Waiting, *, now_ms: int | None, since: int) -> list[Waiting]:
        """Take an event; return events that need not be held any longer, in order of arrival.

        Events near the stream's clock `now_ms` are never far away. Events before number `since` of the stream
        do not count, except the newest.
        """
        self._count += 1
        if self.clock_ms is None:
            self._held.append((self._count, event))
            near = now_ms is not None and abs(event.time_ms - now_ms) <= self._far_ms
            return self._begin(now_ms if near else None) if near or len(self._held) >= HELD_EVENTS else []
        due = [each for number, each in self._held if number <= self._count - CLOCK_EVENTS]
        self._held = self._held[len(due) :]
        now_ms = self.clock_ms if now_ms is None else now_ms
        ahead = event.time_ms > max(self.clock_ms, now_ms) + self._far_ms
        self._ahead.append(ahead)
        if ahead:
            self._held.append((self._count, event))
            return due
        if event.time_ms >= min(self.clock_ms, now_ms) - self._far_ms:
            self._times.append((event.number, event.time_ms))
            while self._times[0][0] < since and len(self._times) > 1:
                self._times.popleft()
            self.clock_ms = median([time_ms for _, time_ms in self._times])
        return [*due, event]

    def has_gone_on(self) -> bool:
        return self._ahead.count(True) >= MOVED_EVENTS and len(self._chain()) >= MOVED_EVENTS

    def start_over(self) -> tuple[list[Waiting], list[Waiting]]:
        chain = self._chain()
        others = [each for _, each in self._held if each not in chain]
        self.clock_ms, self._held = None, []
        self._times.clear()
        self._ahead.clear()
        return chain, others

    def release(self) -> list[Waiting]:
        due = self._begin(None) if self.clock_ms is None and self._held else []
        due += [each for _, each in self._held]
        self._held = []
        return due

    def _begin(self, at_ms: int | None) -> list[Waiting]:
        held = self._held
        at_ms = median([each.time_ms for _, each in held]) if at_ms is None else at_ms
        near = [each for _, each in held if abs(each.time_ms - at_ms) <= self._far_ms]
        # Start at the earliest, so that none makes another one late.
        self.clock_ms = min(each.time_ms for each in near)
        self._times.extend((each.number, each.time_ms) for each in near)
        self._ahead.extend(each.time_ms > at_ms + self._far_ms for _, each in held)
        self._held = [(n, each) for n, each in held if each.time_ms > at_ms + self._far_ms]
        return [each for _, each in held if each.time_ms <= at_ms + self._far_ms]

    def _chain(self) -> list[Waiting]:
        best: list[Waiting] = []
        group: list[Waiting] = []
        for _, held in sorted(self._held, key=lambda each: each[1].time_ms):
            if group and held.time_ms - group[-1].time_ms > self._far_ms:
                group = []
            group.append(held)
            best = group if len(group) > len(best) else best
        return sorted(best, key=lambda each: each.number)

    def state(self) -> list[Any]:
        held = [[number, each.number, each.time_ms, each.data] for number, each in self._held]
        return [self.last_event_ms, self.clock_ms, self._count, list(self._times), list(self._ahead), held]

    @classmethod
    def restore(cls, far_ms: int, state: Sequence[Any]) -> PartitionTime:
        last_event_ms, clock_ms, count, times, ahead, held = state
        self = cls(far_ms, last_event_ms)
        self.clock_ms, self._count = clock_ms, count
        self._times.extend((number, time_ms) for number, time_ms in times)
        self._ahead.extend(ahead)
        self._held = [(number, Waiting(*each)) for number, *each in held]
        return self


WHAT = "clock"
MIN_FAR_MS = 60_000
MAX_GAP_MS = 1_000
MAX_PARTITIONS = 1024
MAX_MOVE_MS = 5_000

Verdict = Literal["in time", "late", "ahead"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an event may be behind the stream's clock, and ahead of its partition's.

    A partition without events for `idle_ms`, while others had some, does not hold back the clock.
    """

    late_ms: int = 5_000
    ahead_ms: int = 3_600_000
    idle_ms: int = 30_000

    @property
    def wait_ms(self) -> int:
        """How far the watermark is behind the clock."""
        return max(0, self.late_ms - MAX_MOVE_MS)

    @property
    def far_ms(self) -> int:
        return max(self.late_ms, self.ahead_ms, MIN_FAR_MS)


@dataclass(frozen=True, slots=True)
class Judged:
    """`clock_ms` is the stream's clock, None before it starts. `ahead_ms` is negative for late events.

    `time_ms` is the time at which the event counts: its own, or the watermark's if that is later.
    """

    data: bytes
    time_ms: int
    clock_ms: int | None
    ahead_ms: int
    verdict: Verdict


class StreamTime:
    """Classifies events by the clocks of their partitions. Not thread-safe.

    A partition's clock is the median time of its last 33 events, or fewer if its share of the stream is
    smaller. The stream's clock is the slowest active one and never goes back. With named partitions it starts
    after `idle_ms`. With one partition, verdicts depend only on the events and their order.
    """

    def __init__(self, tolerance: Tolerance) -> None:
        self._tolerance = tolerance
        self._now_ms: int | None = None
        self._flow_ms = 0
        self._count = 0
        # Ordered by last event.
        self._partitions: dict[str, PartitionTime] = {}
        self._changed: set[str] = set()

    def see(self, time_ms: int, data: bytes, partition: str = "", *, passed_ms: int = 0) -> Iterator[Judged]:
        """Take an event; yield those that now have a verdict. `passed_ms`: time since the previous event."""
        self._flow_ms += min(passed_ms, MAX_GAP_MS)
        self._count += 1
        yield from self._leave_idle()
        found = self._partitions.pop(partition, None) or PartitionTime(self._tolerance.far_ms)
        self._partitions[partition] = found
        self._changed.add(partition)
        found.last_event_ms = self._flow_ms
        yield from self._take(found, Waiting(self._count, time_ms, data))
        if found.has_gone_on():
            clock_ms = found.clock_ms
            chain, others = found.start_over()
            yield from self._judged(clock_ms, others)
            for event in chain:
                yield from self._take(found, event)

    def end(self) -> Iterator[Judged]:
        waiting = [(found, found.release()) for found in self._partitions.values()]
        self._changed |= self._partitions.keys()
        self._advance()
        for found, events in waiting:
            yield from self._judged(found.clock_ms, events)

    def _take(self, found: PartitionTime, event: Waiting) -> Iterator[Judged]:
        since = self._count - CLOCK_EVENTS * len(self._partitions) + 1
        due = found.take(event, now_ms=self._now_ms, since=since)
        self._advance()
        yield from self._judged(found.clock_ms, due)

    def _leave_idle(self) -> Iterator[Judged]:
        while self._partitions:
            name, found = next(iter(self._partitions.items()))
            idle = found.last_event_ms < self._flow_ms - self._tolerance.idle_ms
            if not (idle or len(self._partitions) > MAX_PARTITIONS):
                return
            events = found.release()
            del self._partitions[name]
            self._changed.add(name)
            yield from self._judged(found.clock_ms, events)

    def _advance(self) -> None:
        clocks = self._partitions.values()
        if self._now_ms is None:
            several = any(self._partitions)
            if all(each.clock_ms is None for each in clocks) or (
                several and self._flow_ms < self._tolerance.idle_ms
            ):
                return
        known = [each.lowest_ms for each in clocks if each.lowest_ms is not None]
        if self._now_ms is not None:
            known = [each for each in known if each >= self._now_ms - self._tolerance.far_ms]
        if known:
            self._now_ms = min(known) if self._now_ms is None else max(min(known), self._now_ms)

    def _judged(self, partition_ms: int | None, events: Iterable[Waiting]) -> Iterator[Judged]:
        clocks = [each for each in (partition_ms, self._now_ms) if each is not None]
        for each in events:
            ahead_ms = each.time_ms - max(clocks)
            verdict: Verdict = "ahead" if ahead_ms > self._tolerance.ahead_ms else "in time"
            if self._now_ms is not None and each.time_ms < self._now_ms - self._tolerance.late_ms:
                ahead_ms, verdict = each.time_ms - self._now_ms, "late"
            time_ms = each.time_ms
            if self._now_ms is not None:
                time_ms = max(time_ms, self._now_ms - self._tolerance.wait_ms)
            yield Judged(each.data, time_ms, self._now_ms, ahead_ms, verdict)

    def changes(self) -> Iterator[tuple[str, bytes | None]]:
        for name in self._changed:
            found = self._partitions.get(name)
            stream = (self._now_ms, self._flow_ms, self._count)
            yield name, None if found is None else pack_state(stream, found.state())
        self._changed = set()

    def restore(self, states: Mapping[str, bytes]) -> None:
        """Raises `ForebayError` for other bytes."""
        far_ms = self._tolerance.far_ms
        for name, data in states.items():
            values = unpack_state(data, WHAT)
            try:
                stream, state = values
                self._partitions[name] = PartitionTime.restore(far_ms, state)
                # The entry with the highest count is the newest.
                if stream[2] >= self._count:
                    self._now_ms, self._flow_ms, self._count = stream
            except DAMAGED as error:
                raise damaged(WHAT, error) from None
        self._partitions = dict(sorted(self._partitions.items(), key=lambda each: each[1].last_event_ms))
