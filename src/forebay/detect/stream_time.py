"""The clock of a stream whose events may bear any time: which are too late, which too far ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgpack

from forebay.detect.rates import EventClock
from forebay.errors import MalformedRecord

VERSION = 1
HELD_EVENTS = 9
"""At a stream's start so many events are waited for, so that the clock does not begin with a wrong one."""

Verdict = Literal["in time", "late", "ahead"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far behind the stream's clock, and how far ahead of it, an event may be."""

    late_ms: int = 5_000
    ahead_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Judged:
    """An event, the stream's clock at it, how far ahead of that it is (behind: negative), and the verdict."""

    data: bytes
    clock_ms: int
    ahead_ms: int
    verdict: Verdict


class StreamTime:
    """Judges events by the median time of the last 33; the clock never goes back. Not thread-safe.

    A watermark `late_ms` behind the clock is never later than an event that is in time. What is said of an
    event depends on the events before it alone.
    """

    def __init__(self, tolerance: Tolerance) -> None:
        self._tolerance = tolerance
        self._clock = EventClock()
        self._now_ms = 0
        self._waiting: list[tuple[int, bytes]] | None = []

    def see(self, time_ms: int, data: bytes) -> Iterator[Judged]:
        """Take an event; gives those that are judged now, in order."""
        median_ms = self._clock.see(time_ms)
        if self._waiting is None:
            self._now_ms = max(self._now_ms, median_ms)
            yield self._judged(time_ms, data)
            return
        self._waiting.append((time_ms, data))
        if len(self._waiting) >= HELD_EVENTS:
            yield from self.end()

    def end(self) -> Iterator[Judged]:
        """Nothing more comes: what was waited with is judged."""
        if not self._waiting:
            return
        held, self._waiting = self._waiting, None
        # The clock begins at the earliest of them that may be right: none makes another late.
        earliest_ms = self._clock.now_ms - self._tolerance.ahead_ms
        self._now_ms = min([t for t, _ in held if t >= earliest_ms] + [self._clock.now_ms])
        for time_ms, data in held:
            yield self._judged(time_ms, data)

    def _judged(self, time_ms: int, data: bytes) -> Judged:
        ahead_ms = time_ms - self._now_ms
        verdict: Verdict = "in time"
        if ahead_ms < -self._tolerance.late_ms:
            verdict = "late"
        elif ahead_ms > self._tolerance.ahead_ms:
            verdict = "ahead"
        return Judged(data, self._now_ms, ahead_ms, verdict)

    def to_bytes(self) -> bytes:
        """The whole state: some hundred bytes, and the events that are waited with."""
        packed: bytes = msgpack.packb((VERSION, self._now_ms, self._clock.state(), self._waiting))
        return packed

    def restore(self, data: bytes) -> None:
        """Become what `to_bytes` was taken of. Raises `MalformedRecord` for other bytes."""
        try:
            version, now_ms, clock, waiting = msgpack.unpackb(data)
            if version != VERSION:
                raise MalformedRecord(f"clock: the state is of version {version}; expected {VERSION}")
            self._now_ms, self._clock = now_ms, EventClock.restore(clock)
            self._waiting = None if waiting is None else [(time_ms, each) for time_ms, each in waiting]
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise MalformedRecord(f"clock: not a state: {type(error).__name__}: {error}") from None
