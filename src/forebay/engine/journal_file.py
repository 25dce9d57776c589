"""The journal's SQLite file: open and check it, write, and evict in steps."""

from __future__ import annotations

import sqlite3
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import SettingError
from forebay.files import check_nobody_else_writes

APPLICATION_ID = 0x46425931
"""Marks the file as Forebay's ("FBY1"), in SQLite's own field for it."""

FORMAT = 2
OPEN_TIMEOUT_S = 10.0
PAUSE_S = 0.02
WRITE_TIMEOUT_S = 0.25
READ_TIMEOUT_S = 0.02
ENTRY_OVERHEAD_BYTES = 160
"""The size of an entry besides its value: its row, its hash, and its place in the index of hashes."""

EVICT_AT_MOST = 128
"""Per step; writers of other processes wait at most for one step."""

LOG_BYTES = 16_777_216

TABLES = (
    "CREATE TABLE answers (seq INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, written_ms INTEGER NOT NULL, "
    "value BLOB NOT NULL)",
    "CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL)",
    "INSERT INTO totals VALUES (0, 0)",
    f"PRAGMA user_version = {FORMAT}",
    f"PRAGMA application_id = {APPLICATION_ID}",
)
ANSWERS = "counts as the engine's answers"


@dataclass(frozen=True, slots=True)
class Bounds:
    """`oldest_ms`: entries from before this wall-clock time are too old."""

    max_entries: int
    max_bytes: int
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    hash: str
    value: bytes
    written_ms: int
    oldest_ms: int | None


def connect(path: Path, *, timeout_s: float) -> sqlite3.Connection:
    """A connection for one thread at a time; each statement is a transaction unless one is begun."""
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    return connection


def open_journal(path: Path, *, pause: Callable[[float], None] = time.sleep) -> sqlite3.Connection:
    """A connection to the journal at `path`, which is created if missing.

    Blocks, also while others open it. Raises `SettingError` if the file is something else, damaged or
    unusable, and if others may write to it or its folder: they could forge answers.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_nobody_else_writes(path)
        connection = connect(path, timeout_s=OPEN_TIMEOUT_S)
    except (sqlite3.Error, OSError) as error:
        raise _refused(path, error) from None
    try:
        _prepare(connection, path, pause)
    except sqlite3.Error as error:
        connection.close()
        raise _refused(path, error) from None
    except SettingError:
        connection.close()
        raise
    return connection


def _check_nobody_else_writes(path: Path) -> None:
    # A shared group may use the folder; each member's files belong to that member.
    check_nobody_else_writes(path.parent, ANSWERS, by=stat.S_IWOTH)
    # SQLite reads a log next to the file.
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"):
        check_nobody_else_writes(path.with_name(name), ANSWERS)


def _prepare(connection: sqlite3.Connection, path: Path, pause: Callable[[float], None]) -> None:
    # Checked before anything is written: somebody else's file stays unchanged.
    _check_owner(connection, path)
    if _write_ahead(connection, pause) != "wal":
        raise SettingError(f"journal {path}: this file system cannot share a file; choose a local one")
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if not _check_owner(connection, path):
            for statement in TABLES:
                connection.execute(statement)
        # Touches every table and the index, and proves that the file can be written.
        connection.execute("UPDATE totals SET entries = entries")
        connection.execute("SELECT max(seq), max(hash) FROM answers").fetchone()
    connection.execute(f"PRAGMA busy_timeout = {int(WRITE_TIMEOUT_S * 1000)}")


def _write_ahead(connection: sqlite3.Connection, pause: Callable[[float], None]) -> str:
    """Switch the file to a write-ahead log; returns the resulting mode.

    If two processes switch a new file at once, one gets "database is locked" without a wait.
    """
    connection.execute("PRAGMA busy_timeout = 0")
    for left in range(round(OPEN_TIMEOUT_S / PAUSE_S), -1, -1):
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if not left or "locked" not in str(error):
                raise
        pause(PAUSE_S)
    connection.execute(f"PRAGMA busy_timeout = {int(OPEN_TIMEOUT_S * 1000)}")
    return str(mode)


def _check_owner(connection: sqlite3.Connection, path: Path) -> bool:
    # One statement, one snapshot: between two, another process may have created the journal.
    owner, tables = connection.execute(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT count(*) FROM sqlite_master)"
    ).fetchone()
    if owner == 0 and tables == 0:
        return False
    if owner != APPLICATION_ID:
        raise SettingError(f"journal {path} is a database of something else; name another file")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT:
        raise SettingError(
            f"journal {path} has format {version}, this Forebay writes {FORMAT}; name another file"
        )
    return True


def _refused(path: Path, error: Exception) -> SettingError:
    return SettingError(f"journal {path} cannot be used: {error}; delete it or name another file")


def insert(connection: sqlite3.Connection, entries: Sequence[JournalEntry]) -> list[bool]:
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        return [_insert(connection, entry) for entry in entries]


def _insert(connection: sqlite3.Connection, entry: JournalEntry) -> bool:
    old = connection.execute(
        "SELECT seq, written_ms, length(value) FROM answers WHERE hash = ?", (entry.hash,)
    ).fetchone()
    more, size = 1, len(entry.value) + ENTRY_OVERHEAD_BYTES
    if old is not None:
        if entry.oldest_ms is None or old[1] >= entry.oldest_ms:
            return False
        connection.execute("DELETE FROM answers WHERE seq = ?", (old[0],))
        more, size = 0, len(entry.value) - old[2]
    connection.execute(
        "INSERT INTO answers (hash, written_ms, value) VALUES (?, ?, ?)",
        (entry.hash, entry.written_ms, entry.value),
    )
    connection.execute("UPDATE totals SET entries = entries + ?, bytes = bytes + ?", (more, size))
    return True


def evict(connection: sqlite3.Connection, bounds: Bounds) -> int:
    with closing(connection.cursor()) as cursor:
        if not _beyond(cursor, bounds):
            return 0
        cursor.execute("BEGIN IMMEDIATE")
        with connection:
            last, entries, size = _beyond(cursor, bounds) or (0, 0, 0)
            if entries:
                cursor.execute("DELETE FROM answers WHERE seq <= ?", (last,))
                cursor.execute("UPDATE totals SET entries = entries - ?, bytes = bytes - ?", (entries, size))
        return entries


def _beyond(cursor: sqlite3.Cursor, bounds: Bounds) -> tuple[int, int, int] | None:
    entries, size = cursor.execute("SELECT entries, bytes FROM totals").fetchone()
    last, gone, gone_bytes = 0, 0, 0
    rows = cursor.execute(
        "SELECT seq, written_ms, length(value) FROM answers ORDER BY seq LIMIT ?", (EVICT_AT_MOST,)
    )
    for seq, written_ms, length in rows:
        too_many = entries - gone > bounds.max_entries or size - gone_bytes > bounds.max_bytes
        if not too_many and (bounds.oldest_ms is None or written_ms >= bounds.oldest_ms):
            break
        last, gone, gone_bytes = seq, gone + 1, gone_bytes + length + ENTRY_OVERHEAD_BYTES
    return (last, gone, gone_bytes) if gone else None
