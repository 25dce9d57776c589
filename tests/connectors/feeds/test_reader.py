from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from forebay.connectors.feeds.feed import Received
from forebay.connectors.feeds.source import FeedReader
from forebay.errors import ForebayError
from forebay.testing.waiting import wait_until

WAIT_S = 180.0


@dataclass
class Counting:
    """Returns numbers from the cursor up to `end`; records how far it was read."""

    end: int | None = None
    error: BaseException | None = None
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


def taken(reader: FeedReader, count: int) -> list[str]:
    records = [reader.take(WAIT_S) for _ in range(count)]
    return [record.cursor for record in records if record is not None]


@pytest.mark.parametrize("room", [1, 2, 10])
def test_reading_stops_while_the_queue_is_full(room: int) -> None:
    feed = Counting()
    reader = FeedReader(feed, None, room=room)
    wait_until(lambda: len(feed.given) == room + 1)
    assert taken(reader, 5 * room) == [str(n) for n in range(5 * room)]
    wait_until(lambda: len(feed.given) > 5 * room)
    reader.close()
    assert feed.closed.is_set()
    assert len(feed.given) <= 6 * room + 1


def test_reader_starts_after_the_cursor_and_ends_with_the_feed() -> None:
    reader = FeedReader(Counting(end=8), "5")
    assert taken(reader, 2) == ["6", "7"]
    assert not reader.exhausted
    assert reader.take(WAIT_S) is None
    assert reader.exhausted
    assert reader.take() is None
    reader.close()


def test_records_not_received_yet_are_not_waited_for() -> None:
    class Silent(Counting):
        async def read(self, cursor: str | None) -> AsyncIterator[Received]:
            await asyncio.Event().wait()
            yield Received("", b"", "")

    reader = FeedReader(Silent(), None)
    assert reader.take() is None
    assert not reader.exhausted
    reader.close()


@pytest.mark.parametrize("error", [OSError("gone"), SystemExit("gone"), KeyboardInterrupt("gone")])
@pytest.mark.parametrize("end", [0, 2])
def test_feed_failure_is_raised_after_its_records(error: BaseException, end: int) -> None:
    reader = FeedReader(Counting(end=end, error=error), None)
    reader._thread.join(WAIT_S)
    assert not reader.exhausted
    assert taken(reader, end) == [str(n) for n in range(end)]
    for _ in range(2):
        assert not reader.exhausted
        with pytest.raises(type(error), match="gone"):
            reader.take()
    reader.close()


def test_self_cancelled_feed_has_failed() -> None:
    reader = FeedReader(Counting(end=1, error=asyncio.CancelledError()), None)
    assert taken(reader, 1) == ["0"]
    with pytest.raises(ForebayError, match=r"counting: .* cancelled"):
        reader.take(WAIT_S)
    reader.close()


def test_close_ends_the_thread() -> None:
    reader = FeedReader(Counting(), None, room=1)
    assert reader._thread.is_alive()
    reader.close()
    assert not reader._thread.is_alive()
