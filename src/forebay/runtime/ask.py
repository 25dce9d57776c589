"""Answers for lines of text, at once and without Flink: what `forebay ask` does.

Prompt, schema, retries and admission are those of a pipeline. There is no state: what has no answer when it
is stopped is not asked again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import CancelledError
from typing import BinaryIO, Literal, Protocol

from forebay.connectors.encodings import likely_encoding
from forebay.connectors.formats import MAX_RECORD_BYTES, Format
from forebay.engine.prompt import request_id
from forebay.errors import MalformedRecord
from forebay.records import DeadLetter, Event, KeyedEvent, Result

WAITING_PER_SLOT = 4
"""Answers that may wait for those before them, per request in flight, before no further line is read."""

Kind = Literal["auto", "jsonl", "text"]
Answer = Result | DeadLetter


class Handler(Protocol):
    """Turns an event into an answer."""

    async def answer(self, item: KeyedEvent) -> Answer: ...


class Lines:
    """The lines of a stream as events, or as dead letters where they cannot be read.

    Positions are `line N`, from 1. Empty lines are left out. `auto`: the stream is one of JSON objects where
    its first line begins with a brace, else of texts, whose one field is `text`. A line beyond `max_bytes` is
    a dead letter that holds its beginning.
    """

    def __init__(self, stream: BinaryIO, kind: Kind = "auto", max_bytes: int = MAX_RECORD_BYTES) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._format = None if kind == "auto" else Format(kind, max_record_bytes=max_bytes)
        self._number = 0

    def next(self) -> Event | DeadLetter | None:
        """The next one, None at the end; blocks."""
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
        """Skip the rest of the line that has `begun`; returns the bytes of the whole line without its end."""
        size, last = len(begun), begun
        while begun and not begun.endswith(b"\n"):
            begun = self._stream.readline(1 << 16)
            size, last = size + len(begun), last[-1:] + begun
        return size - len(last) + len(last.rstrip(b"\r\n"))


async def events(lines: Lines) -> AsyncIterator[Event | DeadLetter]:
    """What `lines` gives, read by a thread of its own: a stream that gives nothing holds nobody up."""
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
                # The loop has ended before the input.
                handing.close()
                return
            if found is None or isinstance(found, BaseException):
                return

    # A thread that waits for input must not keep the process from ending.
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
    """The answer to each record, as they come or, if `ordered`, in the order of the records.

    At most `capacity` are asked at a time, and four times as many are held. When the generator is closed,
    what is in flight is cancelled.
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
    # Wakes who waits for an answer that does not come.
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
