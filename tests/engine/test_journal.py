from __future__ import annotations

import asyncio
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engine import journal_file
from forebay.engine.journal import EVICT_EVERY, MAX_WAITING, Journal, JournalConfig
from forebay.errors import SettingError
from forebay.records import Completion, Timing, Usage


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000_000

    def monotonic_s(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return self.now_ms

    def wall_us(self) -> int:
        return self.wall_ms() * 1000


def completion(text: str = "yes") -> Completion:
    return Completion(text=text, finish_reason="stop", usage=Usage(10, 3, 2), timing=Timing(1.0, 2.0))


@asynccontextmanager
async def opened(path: Path, clock: ManualClock | None = None, **bounds: object) -> AsyncIterator[Journal]:
    journal = Journal(JournalConfig(path / "journal.db", **bounds), clock)  # type: ignore[arg-type]
    try:
        yield journal
    finally:
        await journal.close()


def rows(path: Path) -> tuple[int, int]:
    """Entries and bytes, after checking that the file's own totals are equal."""
    connection = sqlite3.connect(path / "journal.db")
    try:
        real = connection.execute("SELECT count(*), coalesce(sum(length(value)), 0) FROM answers").fetchone()
        totals = connection.execute("SELECT entries, bytes FROM totals").fetchone()
    finally:
        connection.close()
    entries, size = real[0], real[1] + real[0] * journal_file.ENTRY_OVERHEAD_BYTES
    assert totals == (entries, size)
    return entries, size


async def test_answer_is_read_back_unchanged(tmp_path: Path) -> None:
    async with opened(tmp_path / "new" / "folder") as journal:
        assert await journal.get("a") is None
        assert await journal.put("a", completion("häb\ud800 \0")) is True
        found = await journal.get("a")
    assert found is not None
    assert (found.text, found.finish_reason, found.usage) == ("häb\ud800 \0", "stop", Usage(10, 3, 2))
    assert found.timing.latency_s == 0


async def test_the_first_answer_wins(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await journal.put("a", completion("first"))
        assert await journal.put("a", completion("second")) is False
        found = await journal.get("a")
    assert found is not None
    assert found.text == "first"
    assert rows(tmp_path)[0] == 1


async def test_answer_outlives_the_journal_object(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await journal.put("a", completion())
    async with opened(tmp_path) as journal:
        assert await journal.get("a") is not None


async def test_entries_are_bounded_and_the_oldest_are_dropped(tmp_path: Path) -> None:
    async with opened(tmp_path, max_entries=100) as journal:
        for i in range(5 * EVICT_EVERY):
            await journal.put(f"{i}", completion())
        assert await journal.get("0") is None
        assert await journal.get(f"{5 * EVICT_EVERY - 1}") is not None
    assert rows(tmp_path)[0] == 100


async def test_bytes_are_bounded(tmp_path: Path) -> None:
    async with opened(tmp_path, max_bytes=50_000) as journal:
        for i in range(3 * EVICT_EVERY):
            await journal.put(f"{i}", completion("x" * 1000))
        assert await journal.put("large", completion("x" * 50_000)) is False
    assert 48_000 < rows(tmp_path)[1] <= 50_000


async def test_expired_entry_is_a_miss_and_is_removed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock, max_age_s=10.0) as journal:
        await journal.put("a", completion("old"))
        await journal.put("b", completion("old"))
        clock.now_ms += 10_000
        assert await journal.get("a") is not None
        clock.now_ms += 1
        assert await journal.get("a") is None
        assert await journal.put("a", completion("new, and longer")) is True
        found = await journal.get("a")
        assert found is not None
        assert found.text == "new, and longer"
        assert rows(tmp_path)[0] == 2
        for i in range(EVICT_EVERY):
            await journal.put(f"{i}", completion())
    assert rows(tmp_path)[0] == EVICT_EVERY + 1


@given(
    puts=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 2000), st.integers(0, 5000)), max_size=250),
    max_entries=st.integers(1, 200),
    max_bytes=st.integers(1, 100_000),
)
async def test_totals_and_bounds_hold_for_any_entries(
    tmp_path_factory: pytest.TempPathFactory,
    puts: list[tuple[int, int, int]],
    max_entries: int,
    max_bytes: int,
) -> None:
    path = tmp_path_factory.mktemp("journal")
    clock = ManualClock()
    async with opened(path, clock, max_entries=max_entries, max_bytes=max_bytes, max_age_s=60.0) as journal:
        for key, length, step_ms in puts:
            clock.now_ms += step_ms
            await journal.put(f"{key}", completion("x" * length))
    entries, size = rows(path)
    assert entries < max_entries + EVICT_EVERY
    if not puts:
        assert size == 0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers wait for each other on any disk; by default they give up after a quarter second."""
    monkeypatch.setattr(journal_file, "WRITE_TIMEOUT_S", 60.0)


@pytest.mark.heavy
@pytest.mark.usefixtures("patient")
async def test_concurrent_writers(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, opened(tmp_path) as other:
        puts = [journal.put(f"{i}", completion(f"{i}")) for i in range(300) for journal in (one, other)]
        written = await asyncio.gather(*puts)
        assert sum(written) == 300
        for i in range(300):
            found = await one.get(f"{i}")
            assert found is not None
            assert found.text == f"{i}"
    assert rows(tmp_path)[0] == 300


@pytest.mark.usefixtures("patient")
def test_threads_open_the_same_new_file(tmp_path: Path) -> None:
    async def use(n: int) -> bool:
        async with opened(tmp_path) as journal:
            return await journal.put(f"{n}", completion())

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*(asyncio.to_thread(asyncio.run, use(n)) for n in range(8)))

    assert asyncio.run(all_of_them()) == [True] * 8
    assert rows(tmp_path)[0] == 8


def test_reader_of_a_new_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM sqlite_master").fetchone()
    waits = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            other.execute("COMMIT")

    journal_file.open_journal(path, pause=pause).close()
    assert len(waits) == 3
    other.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from forebay.engine.journal import Journal, JournalConfig
from forebay.records import Completion, Timing, Usage

async def main():
    journal = Journal(JournalConfig(Path(sys.argv[1]) / "journal.db"))
    for i in range(10**9):
        await journal.put(f"{i}", Completion(f"answer {i}", "stop", Usage(), Timing(0, 0)))
        print(i, flush=True)

asyncio.run(main())
"""


def killed_writer(path: Path) -> int:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        last = -1
        for line in process.stdout:
            last = int(line)
            if last == 200:
                process.send_signal(signal.SIGKILL)
    return last


@pytest.mark.heavy
async def test_written_answers_survive_sigkill(tmp_path: Path) -> None:
    last = killed_writer(tmp_path)
    assert last >= 200
    async with opened(tmp_path) as journal:
        for i in range(last + 1):
            found = await journal.get(f"{i}")
            assert found is not None, i
            assert found.text == f"answer {i}"
        assert await journal.put("after", completion()) is True
    rows(tmp_path)


def damaged(path: Path) -> None:
    path.write_bytes(b"not a database, by any means" * 100)


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()


def newer(path: Path) -> None:
    journal_file.open_journal(path).execute("PRAGMA user_version = 99").connection.close()


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (damaged, "not a database"),
        (foreign, "database of something else"),
        (newer, "format 99"),
        (folder, "unable to open"),
    ],
)
def test_file_that_is_not_a_journal_is_rejected(
    tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    path = tmp_path / "journal.db"
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(SettingError, match=words) as caught:
        Journal(JournalConfig(path))
    assert str(path) in str(caught.value)
    if make in (damaged, foreign):
        assert path.read_bytes() == before


def test_folder_that_cannot_be_created_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cannot be used"):
        Journal(JournalConfig(tmp_path / "file" / "journal.db"))


@pytest.mark.parametrize("name", ["journal.db", "journal.db-wal", "journal.db-shm", "."])
async def test_answers_that_others_may_have_planted_are_rejected(tmp_path: Path, name: str) -> None:
    path = tmp_path / "journal.db"
    await Journal(JournalConfig(path)).close()
    (tmp_path / name).touch()
    (tmp_path / name).chmod(0o777)
    with pytest.raises(SettingError, match=r"others may write to .* counts as the engine's answers"):
        Journal(JournalConfig(path))


async def test_group_folder_may_hold_a_journal(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours").chmod(0o770)
    await Journal(JournalConfig(tmp_path / "ours" / "journal.db")).close()


@pytest.mark.parametrize("bounds", [{"max_entries": 0}, {"max_bytes": -1}, {"max_age_s": 0.0}])
def test_bounds_must_be_positive(tmp_path: Path, bounds: dict[str, int]) -> None:
    with pytest.raises(SettingError, match="above 0"):
        JournalConfig(tmp_path / "journal.db", **bounds)  # type: ignore[arg-type]


async def test_damaged_file_is_a_miss(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await journal.put("a", completion())
        connection = sqlite3.connect(tmp_path / "journal.db")
        connection.execute("UPDATE answers SET value = x'c1c1'")
        connection.commit()
        connection.close()
        assert await journal.get("a") is None
        assert journal.failures == 1


async def test_locked_file_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "WRITE_TIMEOUT_S", 0.05)
    async with opened(tmp_path) as journal:
        await journal.put("a", completion())
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        assert await journal.put("b", completion()) is False
        assert await journal.get("a") is not None
        other.execute("ROLLBACK")
        other.close()
        assert journal.failures == 1
        assert await journal.put("b", completion()) is True


async def test_full_disk_is_a_miss(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await journal.put("a", completion())
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
        try:
            assert await journal.put("b", completion("x" * 500_000)) is False
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert journal.failures == 1
        assert await journal.get("a") is not None
        assert await journal.put("b", completion("x" * 500_000)) is True


async def test_closed_journal_returns_and_stores_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        await journal.put("a", completion())
    assert await journal.get("a") is None
    assert await journal.put("b", completion()) is False
    await journal.close()


async def test_closing_writes_queued_answers(tmp_path: Path) -> None:
    journal = Journal(JournalConfig(tmp_path / "journal.db"))
    puts = [asyncio.ensure_future(journal.put(f"{i}", completion())) for i in range(500)]
    await asyncio.sleep(0)
    await journal.close()
    assert await asyncio.gather(*puts) == [True] * 500


@pytest.mark.heavy
@pytest.mark.usefixtures("patient")
async def test_excess_writes_are_dropped_and_cancelled_ones_are_harmless(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        puts = [asyncio.ensure_future(journal.put(f"{i}", completion())) for i in range(MAX_WAITING + 1000)]
        await asyncio.sleep(0)
        assert journal.failures >= 1000 - 128
        puts[0].cancel()
        other.execute("ROLLBACK")
        other.close()
        await asyncio.gather(*puts, return_exceptions=True)
        assert await journal.put("after", completion()) is True
