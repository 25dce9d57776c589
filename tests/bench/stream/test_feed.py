"""The feed: sends events when they are due, to any client, again after a reconnect."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.bench.stream.feed import Emitted, FeedProcess, next_event, now_us


class Clock:
    def __init__(self) -> None:
        self.us = 1000

    def __call__(self) -> int:
        return self.us


def loaded(clock: Clock, *due_us: int) -> Emitted:
    emitted = Emitted(clock)
    emitted.load(b"".join(b'%d e%d {"n":%d}\n' % (due, n, n) for n, due in enumerate(due_us)))
    return emitted


def test_due_events_are_taken_together() -> None:
    clock = Clock()
    emitted = loaded(clock, 900, 1000, 1001)
    data, number = emitted.take(0, 0)
    assert data == b'id: 0\ndata: {"n":0}\n\nid: 1\ndata: {"n":1}\n\n'
    assert number == 2
    assert emitted.wait_s(2) == pytest.approx(1e-6)
    assert emitted.take(2, 0) == (b"", 2)
    assert emitted.wait_s(3) is None


def test_late_feed_is_reported() -> None:
    clock = Clock()
    emitted = loaded(clock, 1500)
    clock.us = 9000
    emitted.take(0, 0)
    assert emitted.report() == b"e0 1500 9000\n"


def test_an_event_without_a_client_could_not_have_been_written_earlier() -> None:
    clock = Clock()
    emitted = loaded(clock, 1500, 3000)
    clock.us = 2100
    emitted.take(0, 2000)
    clock.us = 3100
    emitted.take(1, 2000)
    assert emitted.report() == b"e0 2000 2100\ne1 3000 3100\n"


def test_reread_event_keeps_its_first_time() -> None:
    clock = Clock()
    emitted = loaded(clock, 500, 900)
    first, _ = emitted.take(0, 0)
    clock.us = 5000
    again, number = emitted.take(0, 4000)
    assert (again, number) == (first, 2)
    assert emitted.report() == b"e0 500 1000\ne1 900 1000\n"


@given(st.lists(st.integers(0, 5000), max_size=30).map(sorted), st.lists(st.integers(1, 900), max_size=12))
def test_every_event_is_sent_once_and_never_early(due_us: list[int], steps: list[int]) -> None:
    clock = Clock()
    emitted = loaded(clock, *due_us)
    number, taken = 0, 0
    for step in [*steps, 10_000]:
        data, number = emitted.take(number, 0)
        taken += data.count(b"data: ")
        assert taken == number == sum(due <= clock.us for due in due_us)
        clock.us += step
    rows = [line.split() for line in emitted.report().splitlines()]
    assert all(int(free) == due <= int(at) for (_, free, at), due in zip(rows, due_us, strict=False))


@pytest.mark.parametrize(
    ("head", "number"),
    [(b"GET / HTTP/1.1\r\nHost: a", 0), (b"GET / HTTP/1.1\r\nLast-Event-ID: 41\r\nAccept: *", 42)],
)
def test_a_client_continues_behind_the_last_event_it_names(head: bytes, number: int) -> None:
    assert next_event(head) == number


def read_events(url: str, events: int, *, after: int | None = None) -> bytes:
    host, port = url.removeprefix("http://").removesuffix("/events").split(":")
    last = "" if after is None else f"Last-Event-ID: {after}\r\n"
    found = b""
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(f"GET /events HTTP/1.1\r\n{last}\r\n".encode())
        while found.count(b"data: ") < events:
            found += client.recv(4096)
    return found


@pytest.mark.heavy
def test_the_process_serves_one_load_after_the_other(tmp_path: Path) -> None:
    with FeedProcess(tmp_path) as feed:
        due = now_us()
        (tmp_path / "one.txt").write_bytes(b'%d e0 {"a":1}\n%d e1 {"a":2}\n' % (due, due + 1000))
        feed.load(tmp_path / "one.txt")
        assert read_events(feed.url, 2).endswith(b'id: 1\ndata: {"a":2}\n\n')
        (tmp_path / "two.txt").write_bytes(b'%d e2 {"a":3}\n' % now_us())
        feed.load(tmp_path / "two.txt")
        assert read_events(feed.url, 1, after=1).endswith(b'\n\nid: 2\ndata: {"a":3}\n\n')
        found = feed.report()
        assert list(found) == ["e0", "e1", "e2"]
        assert all(free <= emitted for free, emitted in found.values())
        feed.check()
