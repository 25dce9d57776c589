"""`python -m forebay.bench.stream.feed`: sends events when they are due, as server-sent events.

Prints its address as the first line of standard output. Each line of standard input is a file of further
events, answered with `ready`, or `report FILE`, which writes that file and is answered with `written`. Ends
with its standard input.

A line of a file of events is `DUE_US ID DATA`, sorted, and none due before one of an earlier file; a line of
a report is `ID FREE_US EMITTED_US`, for each event that was written at least once (see `EventRecord`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n:ok\n\n"
MAX_HEAD_BYTES = 1 << 16
LAST_ID = b"last-event-id"


def now_us() -> int:
    return time.time_ns() // 1000


class Emitted:
    """All events, and when each was first written. `free_us`: when it could have been: when it was due or the
    client connected, whichever was later."""

    def __init__(self, now: Callable[[], int] = now_us) -> None:
        self._now = now
        self.due_us: list[int] = []
        self._ids: list[str] = []
        self._data: list[bytes] = []
        self._free_us: list[int] = []
        self._emitted_us: list[int] = []

    def __len__(self) -> int:
        return len(self.due_us)

    def load(self, lines: bytes) -> None:
        for number, line in enumerate(lines.splitlines(), len(self)):
            due, id, data = line.split(b" ", 2)
            self.due_us.append(int(due))
            self._ids.append(id.decode())
            self._data.append(b"id: %d\ndata: %b\n\n" % (number, data))

    def take(self, number: int, since_us: int) -> tuple[bytes, int]:
        """All due events from `number` on, for a client connected since `since_us`; and the number of the
        next."""
        now, begin = self._now(), number
        while number < len(self.due_us) and self.due_us[number] <= now:
            if number == len(self._emitted_us):
                self._free_us.append(max(self.due_us[number], since_us))
                self._emitted_us.append(now)
            number += 1
        return b"".join(self._data[begin:number]), number

    def wait_s(self, number: int) -> float | None:
        """Seconds until event `number` is due; None if there is none."""
        return max(0.0, (self.due_us[number] - self._now()) / 1e6) if number < len(self.due_us) else None

    def report(self) -> bytes:
        rows = zip(self._ids, self._free_us, self._emitted_us, strict=False)
        return b"".join(b"%b %d %d\n" % (id.encode(), free, at) for id, free, at in rows)


class EventFeed:
    """Serves the events: event N has the id N, and a client continues after the last id it names.

    Unread events wait in this process: a slow pipeline does not make the feed late.
    """

    def __init__(self, emitted: Emitted) -> None:
        self._emitted = emitted
        self._changed: set[asyncio.Event] = set()

    def wake(self) -> None:
        for changed in self._changed:
            changed.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            number = next_event(await reader.readuntil(b"\r\n\r\n"))
            gone = asyncio.create_task(_until_gone(reader, writer, changed))
            writer.write(HEAD)
            since_us = now_us()
            while not writer.is_closing():
                changed.clear()
                data, number = self._emitted.take(number, since_us)
                if data:
                    writer.write(data)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), self._emitted.wait_s(number))
            await gone
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            self._changed.discard(changed)
            writer.close()


async def _until_gone(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changed: asyncio.Event
) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(MAX_HEAD_BYTES):
            pass
    writer.close()
    changed.set()


def next_event(head: bytes) -> int:
    """The number of the first event that a request asks for. Raises `ValueError` for an id that is not a
    number."""
    for line in head.splitlines():
        name, _, value = line.partition(b":")
        if name.strip().lower() == LAST_ID:
            return int(value) + 1
    return 0


def read(place: str) -> bytes:
    return Path(place).read_bytes()


def write(place: str, data: bytes) -> None:
    Path(place).write_bytes(data)


async def main() -> None:
    emitted = Emitted()
    feed = EventFeed(emitted)
    server = await asyncio.start_server(feed.serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/events", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, _, place = line.strip().partition(" ")
        if word == "report":
            write(place, emitted.report())
            print("written", flush=True)
        else:
            emitted.load(read(line.strip()))
            # A garbage collection during a run would make events late.
            gc.freeze()
            feed.wake()
            print("ready", flush=True)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
