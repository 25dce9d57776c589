"""A file played back at its recorded times, or faster by a factor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from pyflink.datastream import DataStream, StreamExecutionEnvironment

from forebay.clock import Clock, SystemClock
from forebay.codec import decode
from forebay.connectors.feed import Received
from forebay.connectors.files import Files, line_reader
from forebay.connectors.pieces import data_files, longest_line, open_file, read_line
from forebay.connectors.polled import Polled, polled_source
from forebay.connectors.rows import LineReader, Progress
from forebay.errors import SettingError
from forebay.records import DeadLetter, Event


@dataclass(frozen=True, slots=True)
class Pace:
    """`speed`: recorded seconds per second. A gap is waited for at most `longest_gap_s`."""

    speed: float = 1.0
    longest_gap_s: float = 60.0

    def __post_init__(self) -> None:
        if not (self.speed > 0 and self.longest_gap_s >= 0):
            raise SettingError(f"speed must be above 0 and longest_gap_s at least 0, found {self}")

    def gap_s(self, before_ms: int | None, time_ms: int | None) -> float:
        """Seconds from the record before to this one; none where times are missing or go back."""
        if before_ms is None or time_ms is None:
            return 0.0
        return min(self.longest_gap_s, max(0, time_ms - before_ms) / 1000 / self.speed)


@dataclass(frozen=True, slots=True)
class ReplayFeed:
    """The records of a file (or a directory's files by name), each at its time; ends with the last one.

    Times count from the first record after the start. The sum of the gaps is kept to: what was late
    because nobody took it is made up.
    """

    path: Path
    reader: LineReader
    pace: Pace = field(default_factory=Pace)
    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    @property
    def name(self) -> str:
        return f"replay:{self.path.name}"

    async def read(self, cursor: str | None) -> AsyncIterator[Received]:
        start_s, before_ms, due_s = self.clock.monotonic_s(), None, 0.0
        for received, time_ms in records_of(self.path, self.reader, cursor):
            due_s += self.pace.gap_s(before_ms, time_ms)
            before_ms = time_ms if time_ms is not None else before_ms
            wait_s = start_s + due_s - self.clock.monotonic_s()
            if wait_s > 0:
                await self.sleep(wait_s)
            yield received


def replay_source(env: StreamExecutionEnvironment, config: Files, pace: Pace) -> DataStream:
    """The records of `config` as bytes of events or dead letters, in order, each at its recorded time.

    The file is read by Python where the source runs, and once at planning, for its length in time (blocks).
    The format must name a time field. Raises `SettingError` for settings that make no sense here.
    """
    if config.follow:
        raise SettingError("a file that is replayed has an end: follow and replay do not go together")
    if config.format.time is None:
        raise SettingError("a replay needs the field that holds the recorded time")
    reader = line_reader(config)
    lasts_s, before_ms = 0.0, None
    for _, time_ms in records_of(config.path, reader, None):
        lasts_s += pace.gap_s(before_ms, time_ms)
        before_ms = time_ms if time_ms is not None else before_ms
    feed = ReplayFeed(config.path.absolute(), reader, pace)
    return polled_source(env, Polled(feed, format=None, lasts_s=lasts_s))


def records_of(path: Path, reader: LineReader, cursor: str | None) -> Iterator[tuple[Received, int | None]]:
    """Each record after `cursor` with its time; `raw` is the encoded record. Blocks on the file system."""
    files = [str(file) for file in data_files(path)]
    first, offset, lines, records = orjson.loads(cursor) if cursor is not None else (0, 0, 0, 0)
    at = Progress(lines, records)
    most = longest_line(reader)
    for number in range(first, len(files)):
        with open_file(files[number]) as file:
            place = offset if number == first else 0
            file.seek(place)
            while True:
                line, taken = read_line(file, most)
                if not taken:
                    break
                place += taken
                at, encoded = reader.step(at, line)
                if encoded is not None:
                    yield _received(orjson.dumps([number, place, at.lines, at.records]).decode(), encoded)
                if reader.limit is not None and at.records >= reader.limit:
                    return
    at, encoded = reader.end(at)
    if encoded is not None:
        yield _received(orjson.dumps([len(files), 0, at.lines, at.records]).decode(), encoded)


def _received(cursor: str, encoded: bytes) -> tuple[Received, int | None]:
    record: Event | DeadLetter = decode(encoded)
    return Received(cursor, encoded, record.position or ""), record.time_ms
