"""Answers on disk, so that an answered request is not sent to an engine again.

One SQLite file with a write-ahead log, for threads and processes of one machine; not on network file systems.
After `put` returned True, the answer survives SIGKILL, but perhaps not a crash of the machine. If an answer
is lost, by eviction, on a full disk or a locked file, the engine is called again. A journal never fails a
record.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgpack

from forebay.clock import Clock, SystemClock
from forebay.engine.journal_file import (
    ENTRY_OVERHEAD_BYTES,
    READ_TIMEOUT_S,
    Bounds,
    JournalEntry,
    connect,
    evict,
    insert,
    open_journal,
)
from forebay.errors import SettingError
from forebay.records import Completion, Timing, Usage

MAX_ENTRY_BYTES = 4_194_304
MAX_WAITING = 4096

MAX_BATCH = 128

EVICT_EVERY = 64


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Where a journal is and how large it may get. Picklable.

    `max_bytes` counts values and `ENTRY_OVERHEAD_BYTES` for each; the files may be some MB larger. With
    `max_age_s=None`, entries never expire.
    """

    path: Path
    max_entries: int = 1_000_000
    max_bytes: int = 1_000_000_000
    max_age_s: float | None = 604_800.0

    def __post_init__(self) -> None:
        if self.max_entries < 1 or self.max_bytes < 1 or (self.max_age_s is not None and self.max_age_s <= 0):
            raise SettingError(
                f"journal {self.path}: bounds must be above 0, found max_entries {self.max_entries}, "
                f"max_bytes {self.max_bytes}, max_age_s {self.max_age_s}"
            )


class Journal:
    """The journal at `config.path`; creates it with its folder if missing. Thread-safe.

    Opening blocks, and raises `SettingError` if the file is not a journal, is damaged, or cannot be written.
    `get` reads at once, in some 10 µs; a thread writes and evicts.
    """

    def __init__(self, config: JournalConfig, clock: Clock | None = None) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._failures = 0
        self._failures_lock = threading.Lock()
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue(MAX_WAITING)
        writer = open_journal(config.path)
        self._reader: sqlite3.Connection | None = connect(config.path, timeout_s=READ_TIMEOUT_S)
        self._thread = threading.Thread(
            target=self._write_all, args=(writer,), name=f"journal {config.path.name}", daemon=True
        )
        self._thread.start()

    @property
    def failures(self) -> int:
        return self._failures

    async def get(self, request_hash: str) -> Completion | None:
        """The answer, with the usage of the original call and no timing; None if it is missing or too old."""
        oldest_ms = self._oldest_ms()
        row, found = self._read(request_hash), None
        if row is not None and (oldest_ms is None or row[0] >= oldest_ms):
            found = _decode(row[1])
            if found is None:
                self._fail()
        return found

    async def put(self, request_hash: str, completion: Completion) -> bool:
        """Store `completion`; returns whether it was written, once that is certain. Never raises.

        Takes some 100 µs, occasionally 10 ms. An existing answer that is not too old wins. Answers above 4
        MiB are not kept.
        """
        value = _encode(completion)
        if len(value) > min(MAX_ENTRY_BYTES, self.config.max_bytes - ENTRY_OVERHEAD_BYTES):
            return False
        done: Future[bool] = Future()
        entry = JournalEntry(request_hash, value, self._clock.wall_ms(), self._oldest_ms())
        with self._lock:
            try:
                if self._reader is None:
                    raise queue.Full
                self._waiting.put_nowait((entry, done))
            except queue.Full:
                self._fail()
                return False
        return await asyncio.wrap_future(done)

    async def close(self) -> None:
        """Write what is queued and close the file. A closed journal returns None and stores nothing."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()
        if reader is not None:
            self._waiting.put(None)
        self._thread.join()

    def _read(self, request_hash: str) -> tuple[int, bytes] | None:
        with self._lock:
            if self._reader is None:
                return None
            try:
                row: tuple[int, bytes] | None = self._reader.execute(
                    "SELECT written_ms, value FROM answers WHERE hash = ?", (request_hash,)
                ).fetchone()
                return row
            except sqlite3.Error:
                self._fail()
                return None

    def _write_all(self, connection: sqlite3.Connection) -> None:
        since_evicted = 0
        open_ = True
        while open_:
            batch, open_ = self._next_batch()
            if batch:
                self._write(connection, batch)
                since_evicted += len(batch)
            if since_evicted >= EVICT_EVERY:
                self._evict(connection)
                since_evicted = 0
        with suppress(sqlite3.Error):
            connection.close()

    def _next_batch(self) -> tuple[list[_Waiting], bool]:
        batch: list[_Waiting] = []
        item = self._waiting.get()
        while item is not None:
            batch.append(item)
            if len(batch) == MAX_BATCH:
                return batch, True
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _write(self, connection: sqlite3.Connection, batch: list[_Waiting]) -> None:
        try:
            written = insert(connection, [entry for entry, _ in batch])
        except Exception:  # whatever it is, callers must not wait without end
            _roll_back(connection)
            self._fail(len(batch))
            written = [False] * len(batch)
        for (_, done), kept in zip(batch, written, strict=True):
            if done.set_running_or_notify_cancel():
                done.set_result(kept)

    def _evict(self, connection: sqlite3.Connection) -> None:
        try:
            bounds = Bounds(self.config.max_entries, self.config.max_bytes, self._oldest_ms())
            while evict(connection, bounds):
                pass
        except Exception:  # the thread must live on
            _roll_back(connection)
            self._fail()

    def _oldest_ms(self) -> int | None:
        age_s = self.config.max_age_s
        return None if age_s is None else self._clock.wall_ms() - int(age_s * 1000)

    def _fail(self, n: int = 1) -> None:
        with self._failures_lock:
            self._failures += n


_Waiting = tuple[JournalEntry, "Future[bool]"]


def _roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.rollback()


def _encode(completion: Completion) -> bytes:
    usage = completion.usage
    value = (
        completion.text,
        completion.finish_reason,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        completion.reasoning,
    )
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def _decode(value: bytes) -> Completion | None:
    try:
        text, finish_reason, *tokens, reasoning = msgpack.unpackb(value, unicode_errors="surrogatepass")
        usage = Usage(*tokens)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    if not isinstance(text, str):
        return None
    return Completion(text, finish_reason, usage, Timing(0.0, 0.0), reasoning=reasoning)
