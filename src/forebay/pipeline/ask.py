"""Answers lines of text without Flink, for `forebay ask`. No state is kept."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import CancelledError
from typing import BinaryIO, Literal

from forebay.connectors.files.unpack import likely_encoding
from forebay.connectors.formats import MAX_RECORD_BYTES, Format
from forebay.engine.prompt import request_id
from forebay.errors import MalformedRecord
from forebay.flink.request_pool import Answer, Handler
from forebay.records import DeadLetter, Event, KeyedEvent

WAITING_PER_SLOT = 4

Kind = Literal["auto", "jsonl", "text"]


class Lines:
    """Reads a stream's lines as events at `line N`, from 1. Unreadable and too long ones become dead letters.

    `auto` means JSON objects if the first line starts with a brace, else texts.
    """

    def __init__(self, stream: BinaryIO, kind: Kind = "auto", max_bytes: int = MAX_RECORD_BYTES) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._format = None if kind == "auto" else Format(kind, max_record_bytes=max_bytes)
        self._number = 0

    def next(self) -> Event | DeadLetter | None:
        while True:
            line = self._stream.readline(self._max_bytes + 2)
            if not line:
                return None
            self._number += 1
            position = f"line {self._number}"
            whole = line.rstrip(b"\r\n")
            if len(whole) > self._max_bytes:
                size = self._rest_of(line)
                error = MalformedRecord(f"the line has {size} bytes, the limit is {self._max_bytes}")
                cut_bytes = size - self._max_bytes
                kept = whole[: self._max_bytes]
                return DeadLetter(kept, error.cause, str(error), position=position, cut_bytes=cut_bytes)
            if whole.strip():
                if self._format is None:
                    begins = whole.lstrip(b"\xef\xbb\xbf \t").startswith(b"{")
                    self._format = Format("jsonl" if begins else "text", max_record_bytes=self._max_bytes)
                return self._read(whole, position)

    def _read(self, line: bytes, position: str) -> Event | DeadLetter:
        assert self._format is not None
        likely = likely_encoding(line)
        found = self._format.read(line, position)
        if likely is None:
            return found
        detail = found.detail if isinstance(found, DeadLetter) else "the line is not UTF-8"
        fix = f"if the input is {likely}, convert it first: iconv -f {likely} -t utf-8"
        return DeadLetter(line, MalformedRecord.cause, f"{detail}; {fix}", position=position)

    def _rest_of(self, begun: bytes) -> int:
        size, last = len(begun), begun
        while begun and not begun.endswith(b"\n"):
            begun = self._stream.readline(1 << 16)
            size, last = size + len(begun), last[-1:] + begun
        return size - len(last) + len(last.rstrip(b"\r\n"))


async def events(lines: Lines) -> AsyncIterator[Event | DeadLetter]:
    loop = asyncio.get_running_loop()
    read: asyncio.Queue[Event | DeadLetter | BaseException | None] = asyncio.Queue(1)

    def hand_over() -> None:
        found: Event | DeadLetter | BaseException | None
        while True:
            try:
                found = lines.next()
            except BaseException as error:
                found = error
            handing = read.put(found)
            try:
                asyncio.run_coroutine_threadsafe(handing, loop).result()
            except (RuntimeError, CancelledError):
                # The loop ended before the input.
                handing.close()
                return
            if found is None or isinstance(found, BaseException):
                return

    # A thread blocked on input must not keep the process alive.
    threading.Thread(target=hand_over, name="forebay-lines", daemon=True).start()
    while (found := await read.get()) is not None:
        if isinstance(found, BaseException):
            raise found
        yield found


async def answers(
    handler: Handler,
    records: AsyncIterator[Event | DeadLetter],
    *,
    capacity: int,
    ordered: bool,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> AsyncGenerator[Answer, None]:
    """Yield one answer per record, as they complete or `ordered` like the records.

    Closing it cancels requests.
    """
    slots, held = asyncio.Semaphore(capacity), asyncio.Semaphore(WAITING_PER_SLOT * capacity)
    ready: asyncio.Queue[asyncio.Task[Answer] | None] = asyncio.Queue()
    tasks: set[asyncio.Task[Answer]] = set()

    async def one(record: Event | DeadLetter) -> Answer:
        try:
            if isinstance(record, DeadLetter):
                return record
            return await handler.answer(KeyedEvent(request_id(record, "", None), "", record, now_ms()))
        finally:
            slots.release()

    async def start_all() -> None:
        async for record in records:
            await held.acquire()
            await slots.acquire()
            task = asyncio.create_task(one(record))
            tasks.add(task)
            if ordered:
                ready.put_nowait(task)
            else:
                task.add_done_callback(ready.put_nowait)

    starting = asyncio.create_task(start_all())
    # Wakes the loop below if no more answers will arrive.
    starting.add_done_callback(lambda _: ready.put_nowait(None))
    try:
        while not (starting.done() and not tasks):
            task = await ready.get()
            if task is None:
                continue
            answer = await task
            tasks.discard(task)
            held.release()
            yield answer
        await starting
    finally:
        starting.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(starting, *tasks, return_exceptions=True)
