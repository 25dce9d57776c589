"""A feed with a time cursor: each message exactly once, even if its server reorders, cuts and repeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.connectors.feeds.feed import Backoff, FeedBroken, Received, digest_of
from forebay.connectors.feeds.jetstream import (
    MAX_FRUITLESS,
    MAX_REMEMBERED,
    MAX_TIME_US,
    REMEMBER_US,
    REWIND_US,
    JetstreamFeed,
    ReplayWindow,
)
from forebay.errors import ForebayError

START_US = 1_700_000_000_000_000
DISORDER_US = REWIND_US - 2
NOW = Backoff(0.0, 0.0)


@dataclass
class Server:
    """Messages with these times arrive one after the other, whether or not they are read.

    A connection sends what has arrived from its cursor on, by time if `by_time`, then new arrivals. `cuts`:
    per connection, the number of messages after which it ends, and the number that arrive until the next one;
    after the last entry, a connection sends everything.
    """

    times: list[int]
    cuts: Iterator[tuple[int, int]]
    by_time: bool
    inclusive: bool
    arrived: int = 0
    cursors: list[int | None] = field(default_factory=list)

    def message(self, number: int) -> bytes:
        return orjson.dumps({"n": number, "time_us": self.times[number]})

    def connection(self, cursor: int | None) -> Iterator[bytes]:
        self.cursors.append(cursor)
        assert len(self.cursors) < 600, "everything was sent, and more is waited for"
        after, meanwhile = next(self.cuts, (1_000_000, 0))
        for number in self._numbers(cursor):
            if after == 0:
                break
            after -= 1
            self.arrived = max(self.arrived, number + 1)
            yield self.message(number)
        # A feed that has delivered nothing begins with what happens then.
        self.arrived = min(len(self.times), self.arrived + meanwhile) if self.arrived else 0

    def _numbers(self, cursor: int | None) -> list[int]:
        stored = list(range(self.arrived))
        if cursor is None:
            stored = []
        elif self.by_time:
            stored = sorted((n for n in stored if self._wanted(n, cursor)), key=self.times.__getitem__)
        else:
            stored = stored[next((n for n in stored if self._wanted(n, cursor)), len(stored)) :]
        return stored + list(range(self.arrived, len(self.times)))

    def _wanted(self, number: int, cursor: int) -> bool:
        return self.times[number] >= cursor + (not self.inclusive)


class Scripted(JetstreamFeed):
    """Reads from the `server` set by a test."""

    server: Server

    async def _payloads(self, cursor_us: int | None) -> AsyncIterator[bytes]:
        for raw in self.server.connection(cursor_us):
            yield raw
        raise FeedBroken("cut")


def feed_of(server: Server) -> Scripted:
    feed = Scripted("wss://jetstream2.us-east.bsky.network/subscribe", backoff=NOW)
    object.__setattr__(feed, "server", server)
    return feed


async def read(server: Server, count: int, cursor: str | None = None) -> list[Received]:
    records = feed_of(server).read(cursor)
    try:
        return [await asyncio.wait_for(anext(records), 60) for _ in range(count)]
    finally:
        await records.aclose()  # type: ignore[attr-defined]


def numbers(records: list[Received]) -> list[int]:
    return [orjson.loads(record.raw)["n"] for record in records]


STEPS = st.sampled_from([0, 1, 300_000, 900_000, 900_000, 2_000_000, REWIND_US + 7, 60_000_000])
LATE = st.sampled_from([0, 0, 1, 1_200_000, DISORDER_US, DISORDER_US])


@st.composite
def out_of_order(draw: st.DrawFn) -> list[int]:
    """Times that lag the newest earlier one by at most the tolerance."""
    newest, times = START_US, []
    for step, late in draw(st.lists(st.tuples(STEPS, LATE), min_size=12, max_size=40)):
        newest += step
        times.append(max(START_US, newest - late))
    return times


@given(
    out_of_order(),
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 5)), min_size=2, max_size=MAX_FRUITLESS),
    st.lists(st.integers(1, 9), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_each_message_is_read_once_over_reconnects_and_resumes(
    times: list[int], cuts: list[tuple[int, int]], parts: list[int], by_time: bool, inclusive: bool
) -> None:
    server = Server(times, iter(cuts), by_time, inclusive)
    got: list[int] = []
    cursor: str | None = None
    for part in [*parts, len(times)]:
        count = min(part, len(times) - len(got))
        if count:
            records = asyncio.run(read(server, count, cursor))
            got += numbers(records)
            cursor = str(records[-1].cursor)
    assert sorted(got) == list(range(len(times)))


@pytest.mark.heavy
def test_reported_cases_of_doubled_or_lost_messages() -> None:
    """A time far behind the others just before a disconnect, and one in between."""
    times = [START_US + 10_000 * n for n in range(100)]
    times += [START_US + 500, times[-1] + 1, times[-1] - 5]
    for cut in range(1, len(times)):
        server = Server(times, iter([(cut, 3)]), by_time=True, inclusive=True)
        assert sorted(numbers(asyncio.run(read(server, len(times))))) == list(range(len(times)))


def test_time_far_ahead_does_not_move_the_cursor() -> None:
    times = [START_US, START_US + 10, MAX_TIME_US, START_US + 20, START_US + 30]
    for cut in range(1, 5):
        server = Server(times, iter([(cut, 5)]), by_time=True, inclusive=True)
        assert sorted(numbers(asyncio.run(read(server, 5)))) == [0, 1, 2, 3, 4]
        assert server.cursors[1] is not None
        assert server.cursors[1] <= START_US + 30


@pytest.mark.heavy
def test_messages_of_one_time_are_read_once_beyond_the_memory_limit() -> None:
    count = 2 * MAX_REMEMBERED
    times = [START_US + n // 3 for n in range(count)]
    server = Server(times, iter([(count // 2, 0), (count // 2, 7)]), by_time=False, inclusive=True)
    assert sorted(numbers(asyncio.run(read(server, count)))) == list(range(count))


def test_server_that_disconnects_during_replay_does_not_stop_the_feed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    times = [START_US + n for n in range(60)]
    server = Server(times, iter([(20, 1), *[(19, 1), (20, 1)] * 500]), by_time=True, inclusive=True)
    assert sorted(numbers(asyncio.run(read(server, 60)))) == list(range(60))
    assert next(server.cuts, None) is not None
    assert "ended before they had repeated the last 5 s" in caplog.text


def test_idle_connections_closed_by_the_server(caplog: pytest.LogCaptureFixture) -> None:
    times = [START_US, START_US + 1, START_US + 2]
    server = Server(times, iter([(2, 0), *[(2, 0)] * 20]), by_time=True, inclusive=True)
    assert numbers(asyncio.run(read(server, 3))) == [0, 1, 2]
    assert len(server.cursors) == 22
    assert "repeated" not in caplog.text


@given(st.lists(st.integers(0, MAX_TIME_US) | st.integers(START_US, START_US + 10), max_size=200))
def test_any_times_are_accepted_and_memory_survives_as_text(times: list[int]) -> None:
    window = ReplayWindow()
    for number, time_us in enumerate(times):
        assert window.add(time_us, digest_of(b"%d" % number))
        assert not window.add(time_us, digest_of(b"%d" % number))
    again = ReplayWindow.of(str(window.snapshot()))
    assert str(again.snapshot()) == str(window.snapshot())
    assert again.cursor_us() == window.cursor_us()
    assert window.cursor_us() is None or 0 <= (window.cursor_us() or 0) <= MAX_TIME_US
    if times:
        assert not again.add(times[-1], digest_of(b"%d" % (len(times) - 1)))


@pytest.mark.parametrize("step_us", [0, 1, 1000, -1, REWIND_US + 1])
def test_memory_of_seen_messages_is_bounded(step_us: int) -> None:
    window = ReplayWindow()
    for number in range(3 * MAX_REMEMBERED):
        window.add(START_US + step_us * number, f"{number:016}")
    assert len(orjson.loads(str(window.snapshot()))[3]) <= min(
        MAX_REMEMBERED, MAX_REMEMBERED if step_us <= 0 else REMEMBER_US // step_us + 3
    )
    assert len(window._digests) <= MAX_REMEMBERED
    assert len(window._entries) <= 2 * MAX_REMEMBERED + 1


def test_snapshot_does_not_change() -> None:
    window = ReplayWindow()
    texts = []
    for number in range(5000):
        window.add(START_US + 100_000 * number, f"{number:016}")
        if number % 100 == 0:
            snapshot = window.snapshot()
            texts.append((snapshot, str(snapshot)))
    assert all(str(snapshot) == text for snapshot, text in texts)


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "[1,2]", "[null,null,-1,[[1]]]", '[null,null,-1,[["a","b"]]]', "[-5,null,-1,[]]", "{}"],
)
def test_unreadable_cursor_names_the_fix(text: str) -> None:
    with pytest.raises(ForebayError, match="resume from an older checkpoint, or start over"):
        ReplayWindow.of(text)
