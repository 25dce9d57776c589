"""A feed as a source without Flink: output of a call, state, and failures, none of which is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.clock import ManualClock
from tests.harness.keyed_state import OneKeyContext, Room

from forebay.codec import decode
from forebay.connectors.feeds import source as feed_source
from forebay.connectors.feeds.feed import FeedRefused, Received
from forebay.connectors.feeds.source import Poll, Polled, polled_source
from forebay.errors import SettingError
from forebay.flink.types import END_OF_TIME_MS
from forebay.records import DeadLetter


@dataclass
class Scripted:
    """Returns the numbers from the cursor up to `end`, or fails before number `fails`."""

    end: int
    fails: int | None = None
    name: str = "scripted"

    async def read(self, cursor: str | None) -> AsyncIterator[Received]:
        for number in range(0 if cursor is None else int(cursor) + 1, self.end):
            if number == self.fails:
                raise FeedRefused(f"no number {number}")
            yield Received(str(number), b"%d" % number, f"n@{number}")
        if self.fails == self.end:
            raise FeedRefused("no end")


class Endless(Scripted):
    async def read(self, cursor: str | None) -> AsyncIterator[Received]:
        async for received in super().read(cursor):
            yield received
        await asyncio.Event().wait()


class Run:
    """One run of a source, from a checkpoint. Its calls are limited only by the clock."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        feed: Scripted,
        *,
        limit: int | None = None,
        states: dict[str, bytes] | None = None,
        room: Room | None = None,
    ) -> None:
        self.room = room or Room()
        monkeypatch.setattr(feed_source, "output_room", lambda _: self.room)
        self.context = OneKeyContext(states)
        self.clock = ManualClock()
        self.slept: list[float] = []
        self.function = Poll(Polled(feed, None, limit=limit), clock=self.clock, sleep=self.slept.append)
        self.function.open(self.context)

    def call(self) -> list[int]:
        return [int(each) for each in self.function.process_element(0, self.context)]

    def end(self) -> list[int]:
        return [int(each) for each in self.function.on_timer(END_OF_TIME_MS, self.context)]

    def until(self, count: int) -> list[int]:
        """Call until `count` records were emitted."""
        got: list[int] = []
        while len(got) < count:
            got += self.call()
        return got

    def close(self) -> None:
        self.function.close()


def test_call_emits_what_fits_and_the_next_one_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, Endless(9), room=Room(True, True, False, False))
    calls = []
    while sum(map(len, calls)) < 9:
        got = run.call()
        # The reader may not be as far; each record except the last arrived one asked for room once.
        if got:
            calls.append(got)
    assert [number for call in calls for number in call] == list(range(9))
    assert run.room.asked == 9
    assert len(calls) >= 3
    run.close()


def test_flinks_state_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, Endless(9), room=Room(*[False] * 9))
    reads, value = [0], run.function._state.value

    def counted() -> object:
        reads[0] += 1
        return value()

    monkeypatch.setattr(run.function._state, "value", counted)
    assert run.until(9) == list(range(9))
    assert reads == [1]
    run.close()


def test_call_emits_one_record_even_if_there_is_never_room(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, Endless(50), room=Room(*[False] * 50))
    calls = [run.call() for _ in range(50)]
    while sum(map(len, calls)) < 50:
        calls.append(run.call())
    assert max(map(len, calls)) == 1
    run.close()


def test_call_ends_in_time_although_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, Endless(50))
    # Every record takes 20 ms to hand on; a call may last for 50.
    longest, got = 0, 0
    while got < 50:
        call = 0
        for _ in run.function.process_element(0, run.context):
            run.clock.advance(0.02)
            call += 1
        longest, got = max(longest, call), got + call
    assert longest <= 3
    run.close()


@given(st.integers(1, 30), st.integers(1, 30), st.lists(st.booleans(), max_size=40), st.data())
def test_restore_between_any_two_calls_continues_exactly(
    end: int, limit: int, room: list[bool], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        script, states, got, count = Room(*room), {}, [], min(end, limit)
        while len(got) < count:
            run = Run(monkeypatch, Endless(end), limit=limit, states=states, room=script)
            for _ in range(data.draw(st.integers(1, 5))):
                got += run.call()
            states = run.context.states
            run.close()
        assert got == list(range(count))
        run = Run(monkeypatch, Endless(end), limit=limit, states=states)
        assert run.call() == []
        assert run.context.counted == (limit <= end)
        run.close()


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_a_failure_at_any_time_is_raised_by_a_call_or_at_the_end(fails: int, limit: int, calls: int) -> None:
    """Whatever was emitted before: the job must not end as if everything had been read."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = Run(monkeypatch, Scripted(12, fails), limit=limit + 1)
        got: list[int] = []
        try:
            with pytest.raises(FeedRefused) if fails <= limit else nullcontext():
                for _ in range(calls):
                    for each in run.function.process_element(0, run.context):
                        got.append(int(each))
                for each in run.function.on_timer(END_OF_TIME_MS, run.context):
                    got.append(int(each))
        finally:
            run.close()
        assert got == list(range(min(fails, limit + 1)))
        assert run.context.counted == (fails > limit)


def test_a_failed_feed_without_a_limit_fails_a_drained_job(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, Scripted(3, fails=2), room=Room(False, False))
    assert run.until(2) == [0, 1]
    assert run.function._reader is not None
    run.function._reader._thread.join(180)
    with pytest.raises(FeedRefused):
        run.end()
    run.close()


def test_a_feed_without_a_limit_keeps_its_position_in_a_drained_job(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, Endless(3))
    assert run.until(3) == [0, 1, 2]
    assert run.end() == []
    run.close()


@pytest.mark.parametrize(("feed", "limit"), [(Endless(9), 4), (Scripted(4), None), (Scripted(4), 9)])
def test_feed_at_its_limit_or_end_is_closed_and_reported_once(
    monkeypatch: pytest.MonkeyPatch, feed: Scripted, limit: int | None
) -> None:
    run = Run(monkeypatch, feed, limit=limit)
    assert run.until(4) == [0, 1, 2, 3]
    while not run.context.counted:
        assert run.call() == []
    # Calls that follow one another at once would keep a processor busy until the job is drained.
    assert run.slept == []
    assert run.call() == run.call() == run.end() == []
    assert len(run.slept) == 2
    assert run.context.counted == 1
    assert run.function._reader is None
    run.close()


def test_limit_below_what_was_read_ends_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, Endless(9), limit=8)
    assert run.until(8) == list(range(8))
    states = run.context.states
    run.close()
    run = Run(monkeypatch, Endless(9), limit=4, states=states)
    assert run.call() == []
    assert run.context.counted == 1
    assert run.end() == []
    run.close()


def test_end_of_input_timer_is_set_by_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, Endless(1))
    run.call()
    assert run.context.event_timers == {END_OF_TIME_MS}
    run.close()


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        (b'{"a": 1}', {"a": 1, "sse": {"event": "edit"}}),
        (b'{"a": 1, "sse": [5]}', {"a": 1, "sse": {"event": "edit", "own": [5]}}),
        (b"no JSON", None),
    ],
)
def test_feed_metadata_is_part_of_the_record(raw: bytes, fields: dict[str, Any] | None) -> None:
    poll = Poll(Polled(Scripted(1)))
    received = Received("c", raw, "p", {"sse": {"event": "edit"}}, {"sse-event": b"edit"}, 7)
    record = decode(poll._encoded(received))
    assert record.headers == {"sse-event": b"edit"}
    assert record.raw == raw
    if fields is None:
        assert isinstance(record, DeadLetter)
        assert record.cut_bytes == 7
    else:
        assert record.fields == fields


@pytest.mark.parametrize("wrong", [{"room": 0}, {"limit": 0}])
def test_invalid_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="must be at least 1"):
        polled_source(None, Polled(Scripted(1), **wrong))
