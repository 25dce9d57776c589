from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from forebay.connectors.feed import Received
from forebay.connectors.reader import FeedReader
from forebay.testing.waiting import wait_until


@dataclass
class Counting:
    """Gives numbers from the cursor on, up to `end`; notes how far it was read."""

    end: int | None = None
    error: Exception | None = None
    name: str = "counting"
    given: list[int] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    async def read(self, cursor: str | None) -> AsyncIterator[Received]:
        number = 0 if cursor is None else int(cursor) + 1
        try:
            while self.end is None or number < self.end:
                self.given.append(number)
                yield Received(str(number), b"%d" % number, f"n@{number}")
                number += 1
            if self.error is not None:
                raise self.error
        finally:
            await asyncio.sleep(0)
            self.closed.set()


def test_reading_stops_when_the_queue_is_full_and_goes_on_when_it_is_not() -> None:
    feed = Counting()
    reader = FeedReader(feed, None, room=10)
    wait_until(lambda: len(feed.given) == 11)
    assert [r.cursor for r in reader.take(4)] == ["0", "1", "2", "3"]
    wait_until(lambda: len(feed.given) == 15)
    reader.close()
    assert feed.closed.is_set()
    assert len(feed.given) == 15


def test_it_starts_after_the_cursor_and_ends_with_the_feed() -> None:
    reader = FeedReader(Counting(end=8), "5")
    reader.wait(180)
    assert not reader.exhausted
    assert [r.cursor for r in reader.take(10)] == ["6", "7"]
    assert reader.exhausted
    assert reader.take(10) == []
    reader.close()


def test_a_feed_that_fails_is_raised_after_its_records() -> None:
    reader = FeedReader(Counting(end=2, error=OSError("gone")), None)
    reader.wait(180)
    assert len(reader.take(10)) == 2
    with pytest.raises(OSError, match="gone"):
        reader.take(10)
    reader.close()


def test_close_ends_the_thread() -> None:
    reader = FeedReader(Counting(), None, room=1)
    assert reader._thread.is_alive()
    reader.close()
    assert not reader._thread.is_alive()
