"""Recent messages of a feed with a time cursor, so that a replay delivers none twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from forebay.errors import ForebayError

REWIND_US = 5_000_000
"""The cursor's distance from the newest time: messages may be out of order by as much."""
REMEMBER_US = 2 * REWIND_US
"""Twice as long, because a server may begin before the cursor."""
MAX_REMEMBERED = 8192
MAX_TIME_US = 2**63 - 1

Entry = tuple[int, str]
"""Time and digest."""


@dataclass(frozen=True, slots=True)
class FeedSnapshot:
    """A `ReplayWindow` at one moment; cheap, because the text is made on demand."""

    entries: list[Entry]
    first: int
    end: int
    high: int | None
    ahead: int | None
    floor: int

    def __str__(self) -> str:
        entries = self.entries[self.first : self.end]
        return orjson.dumps([self.high, self.ahead, self.floor, entries]).decode()


class ReplayWindow:
    """Remembers the messages of the last ten seconds of the feed's own time, at most 8,192.

    After a reconnect from `cursor_us`, each message is delivered exactly once if the server sends all
    messages from there on, by time or in the same order, and none is out of order by more than five seconds
    (or the span of the remembered messages, if shorter).

    A newest time counts once the next message confirms it, so a single time far ahead changes nothing.
    """

    __slots__ = ("_ahead", "_digests", "_entries", "_first", "_floor", "_high")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        # Earlier entries are forgotten but stay in the list, which snapshots share.
        self._first = 0
        self._digests: set[str] = set()
        self._high: int | None = None
        self._ahead: int | None = None
        # The newest time that was dropped because the window was full.
        self._floor = -1

    @classmethod
    def of(cls, text: str | None) -> ReplayWindow:
        """Parse a snapshot; an empty window for None. Raises `ForebayError`."""
        window = cls()
        if text is None:
            return window
        try:
            high, ahead, floor, entries = orjson.loads(text)
            window._entries = [(_time(time_us), _digest(digest)) for time_us, digest in entries]
            window._high = None if high is None else _time(high)
            window._ahead = None if ahead is None else _time(ahead)
            window._floor = floor if floor == -1 else _time(floor)
        except (ValueError, TypeError) as error:
            raise ForebayError(
                f"the feed's cursor in the checkpoint cannot be read ({str(error)[:200]}): resume from "
                "an older checkpoint, or start over"
            ) from None
        window._digests = {digest for _, digest in window._entries}
        return window

    @property
    def newest_us(self) -> int | None:
        return self._ahead if self._high is None else self._high

    def cursor_us(self, rewind_us: int = REWIND_US) -> int | None:
        """None if nothing was delivered yet."""
        newest = self.newest_us
        if newest is None:
            return None
        # Servers differ in whether they send messages with exactly the cursor's time.
        return max(0, min(max(newest - rewind_us, self._floor) + 1, newest - 1))

    def add(self, time_us: int, digest: str) -> bool:
        """Call before delivery. False: it was delivered already."""
        if digest in self._digests:
            return False
        self._digests.add(digest)
        self._entries.append((time_us, digest))
        self._advance(time_us)
        self._forget()
        return True

    def snapshot(self) -> FeedSnapshot:
        return FeedSnapshot(
            self._entries, self._first, len(self._entries), self._high, self._ahead, self._floor
        )

    def _advance(self, time_us: int) -> None:
        if self._high is not None and time_us <= self._high + REWIND_US:
            self._high = max(self._high, time_us)
            self._ahead = None
        elif self._ahead is None:
            self._ahead = time_us
        else:
            self._high = min(self._ahead, time_us)
            self._ahead = time_us

    def _forget(self) -> None:
        high = -1 if self._high is None else self._high
        while True:
            time_us, digest = self._entries[self._first]
            full = len(self._entries) - self._first > MAX_REMEMBERED
            if not full and time_us >= high - REMEMBER_US:
                break
            if full and time_us <= high:
                self._floor = max(self._floor, time_us)
            self._digests.discard(digest)
            self._first += 1
        if self._first > max(1000, len(self._entries) // 2):
            self._entries = self._entries[self._first :]
            self._first = 0


def _time(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_TIME_US:
        raise ValueError(f"expected a time in microseconds, found {str(value)[:40]!r}")
    return value


def _digest(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 16:
        raise ValueError(f"expected a digest, found {str(value)[:40]!r}")
    return value
