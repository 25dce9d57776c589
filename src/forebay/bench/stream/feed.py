"""`python -m forebay.bench.stream.feed`: sends events when they are due, as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from forebay.errors import LaunchError
from forebay.processes import module_command, parent_death_signal

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n:ok\n\n"
MAX_HEAD_BYTES = 1 << 16
LAST_ID = b"last-event-id"


def now_us() -> int:
    return time.time_ns() // 1000


class Emitted:
    """All events, and when each was first written."""

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
        now, begin = self._now(), number
        while number < len(self.due_us) and self.due_us[number] <= now:
            if number == len(self._emitted_us):
                self._free_us.append(max(self.due_us[number], since_us))
                self._emitted_us.append(now)
            number += 1
        return b"".join(self._data[begin:number]), number

    def wait_s(self, number: int) -> float | None:
        return max(0.0, (self.due_us[number] - self._now()) / 1e6) if number < len(self.due_us) else None

    def report(self) -> bytes:
        rows = zip(self._ids, self._free_us, self._emitted_us, strict=False)
        return b"".join(b"%b %d %d\n" % (id.encode(), free, at) for id, free, at in rows)


class EventFeed:
    """Serves the events; a client resumes after the last id it names.

    Unread events wait here: a slow pipeline does not make the feed late.
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
    """Raises `ValueError` if the id is not a number."""
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


class FeedProcess:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> FeedProcess:
        self._process = subprocess.Popen(
            module_command("forebay.bench.stream.feed"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=parent_death_signal(signal.SIGKILL),  # noqa: PLW1509
        )
        self.url = self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self, path: Path) -> None:
        """Send the events of a file when they are due; blocks until it is read."""
        self._note(str(path))

    def report(self) -> dict[str, tuple[int, int]]:
        """By id: when each written event could have been written, and when it was."""
        path = self._folder / "emitted.txt"
        self._note(f"report {path}")
        rows = (line.split() for line in path.read_text().splitlines())
        return {id: (int(free), int(at)) for id, free, at in rows}

    def check(self) -> None:
        if self._process.poll() is not None:
            raise LaunchError(f"the feed ended with status {self._process.poll()}")

    def _note(self, words: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{words}\n")
            self._process.stdin.flush()
        except OSError:
            self.check()
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise LaunchError("the feed ended; see its standard error")
        return answer


if __name__ == "__main__":
    asyncio.run(main())
