"""Files as a stream of records, as fast as possible or at their recorded times."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

from forebay.clock import Clock, SystemClock
from forebay.codec import decode, pack_state, unpack_state
from forebay.connectors.files.lines import LinePart, LinePlace, cannot_read, files_of
from forebay.connectors.files.listing import check_kind
from forebay.connectors.files.reader import (
    FileCursor,
    FilesReader,
    LineReader,
    distinct,
    header_of,
    parts_of,
    starts_of,
)
from forebay.connectors.files.unpack import UNREADABLE, UTF_8, canonical_encoding
from forebay.connectors.formats import Format
from forebay.connectors.kafka.registry import SchemaRegistry
from forebay.connectors.python_source import WAIT_S, CallLimit, ReadShare, SkippedCalls, calls
from forebay.errors import ForebayError, SettingError
from forebay.flink.jvm_task import is_cancelled, output_room
from forebay.flink.types import BYTES, END_OF_TIME_MS, STATE
from forebay.records import DeadLetter, Event

FIRST_BYTES = 1 << 18

LINES_PER_PIECE = 4
"""A checkpoint waits for one piece, and each piece costs a call."""
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 64, 1024
SAMPLED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Files:
    """A file, or all files under a directory by name, except names that start with `.` or `_`.

    They are read up to their sizes at the job's first start; with `follow` also new files and added lines,
    without end. Each CSV file has its own header, unless the format names the columns.

    A line longer than 16 MiB and than the format's `max_record_bytes` becomes a dead letter with its first
    bytes.
    """

    path: Path
    format: Format = field(default_factory=Format)
    follow: bool = False
    every_s: float = 1.0
    letters: bool = False
    limit: int | None = None
    encoding: str = UTF_8
    registry: SchemaRegistry | None = None


def file_source(env: StreamExecutionEnvironment, config: Files) -> DataStream:
    """In order, by one subtask. Positions are `name@line`.

    Blocks: unpacks compressed files, and reads up to a limit. Raises `SettingError`.
    """
    from forebay.connectors.files.follow import FollowFolder

    reader = line_reader(config)
    name = f"files {config.path.name}"
    if config.follow:
        given = calls(env, name=name)
        read: KeyedProcessFunction = FollowFolder(config.path.absolute(), reader, config.every_s)
    else:
        parts = parts_of(config.path, reader)
        step = piece_bytes(parts)
        given = calls(env, count=max(1, math.ceil(sum(part.size for part in parts) / step)), name=name)
        read = ReadPieces(parts, reader, step)
    return given.process(read, BYTES).set_parallelism(1).name(f"read {config.format.kind}")


def line_reader(config: Files) -> LineReader:
    """Raises `SettingError`, also for a required CSV header that cannot be read. Blocks."""
    if not config.path.exists():
        raise SettingError(f"source path {config.path} does not exist")
    check_kind(config.path)
    if config.follow and not config.path.is_dir():
        raise SettingError(f"follow watches a directory, and {config.path} is a file: name a directory")
    if config.follow and config.limit is not None:
        raise SettingError(
            "limit ends a source, and follow keeps it open for new files: leave one of them out"
        )
    if config.limit is not None and config.limit < 1:
        raise SettingError(f"limit must be at least 1, found {config.limit}")
    header = config.format.kind == "csv" and not config.format.columns
    if header and config.letters:
        raise SettingError("dead letters of CSV rows hold no header: name the columns")
    encoding = canonical_encoding(config.encoding)
    reader = LineReader(config.format, header, config.letters, config.limit, encoding, config.registry)
    if header and not config.follow:
        first_header(config.path, reader)
    return reader


def first_header(path: Path, reader: LineReader) -> tuple[str, ...]:
    """Blocks. Raises `SettingError` if there is none."""
    found = 0
    for part in files_of(path):
        found += 1
        names = header_of(part, reader)
        if names is not None:
            return distinct(names)
    if not found:
        raise SettingError(f"{path} holds no file to take the CSV header from: name the columns")
    raise SettingError(f"{path} is empty: it has no line with the names of its columns")


def first_records(config: Files) -> Iterator[Event | DeadLetter]:
    """Of the first 256 KiB, up to an unreadable file. Blocks. Raises as `line_reader`."""
    reader, left = line_reader(config), FIRST_BYTES
    for part in files_of(config.path):
        try:
            rows = reader.rows(part, LinePlace())
        except UNREADABLE:
            return
        place = LinePlace()
        try:
            while (row := rows.next()) is not None and row.after.offset <= left:
                place, record = reader.step(f"{part.name}@", place, row)
                if record is not None:
                    yield cast(Event | DeadLetter, decode(record))
        except UNREADABLE:
            return
        finally:
            rows.close()
        if row is not None:
            return
        left -= place.offset


def has_no_records(config: Files) -> bool:
    """Whether files are empty, or too short to hide a record from `first_records`. Blocks; raises as
    `line_reader`."""
    if next(first_records(config), None) is not None:
        return False
    left = FIRST_BYTES
    for part in files_of(config.path):
        try:
            with part.open() as file:
                left -= len(file.read(left + 1))
        except UNREADABLE:
            return False
        if left < 0:
            return False
    return True


def piece_bytes(parts: Sequence[LinePart]) -> int:
    """A few lines, sampled from the first files. Blocks. Raises `SettingError`."""
    lengths: list[int] = []
    for part in parts[:16]:
        try:
            with part.open() as file:
                block = file.read(min(part.size, SAMPLED_BYTES))
        except UNREADABLE as error:
            raise cannot_read(part.path, error) from None
        lengths += [len(line) + 1 for line in block.split(b"\n")[:-1]] or [len(block)]
    median = sorted(lengths)[len(lengths) // 2] if lengths else 0
    few = LINES_PER_PIECE * sum(lengths) // max(1, len(lengths))
    return max(MIN_PIECE_BYTES, median, min(few, MAX_PIECE_BYTES))


class ReadPieces(KeyedProcessFunction):
    def __init__(self, parts: Sequence[LinePart], reader: LineReader, step: int) -> None:
        self._parts = parts
        self._reader = reader
        self._step = step
        self._files: FilesReader | None = None
        self._at = FileCursor()

    def open(self, runtime_context: RuntimeContext) -> None:
        self._place = runtime_context.get_state(ValueStateDescriptor("place", STATE))
        # Kept in state: new or grown files would shift the remaining pieces.
        self._first_parts = runtime_context.get_state(ValueStateDescriptor("parts", STATE))
        self._first_step = runtime_context.get_state(ValueStateDescriptor("step", STATE))
        self._share = ReadShare(runtime_context)
        self._skipped = SkippedCalls(runtime_context)

    def close(self) -> None:
        if self._files is not None:
            self._files.close()

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        if self._files is None:
            self._begin(ctx)
        yield from self._records((value + 1) * self._step)
        assert self._files is not None
        piece = self._files.offset(self._at) // self._step
        if piece > value + 1:
            self._skipped.until(piece)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[bytes]:
        if self._files is None:
            self._begin(ctx)
        yield from self._records(None)

    def _records(self, until: int | None) -> Iterator[bytes]:
        assert self._files is not None
        before = self._at
        for after, record in self._files.records(before, until):
            self._at = after
            if record is not None:
                yield record
        if self._at != before:
            self._place.update(pack_cursor(self._at))
        self._share.report(self._files.offset(self._at), self._files.size)

    def _begin(self, ctx: KeyedProcessFunction.Context) -> None:
        if self._place.value() is None:
            ctx.timer_service().register_event_time_timer(END_OF_TIME_MS)
            self._first_parts.update(pack_parts(self._parts))
            self._first_step.update(pack_state(self._step))
            self._place.update(pack_cursor(FileCursor()))
        self._at = unpack_cursor(self._place.value())
        self._files = FilesReader(unpack_parts(self._first_parts.value()), self._reader)
        (self._step,) = unpack_state(self._first_step.value(), "size of pieces")


def place_values(place: LinePlace) -> tuple[object, ...]:
    return (place.offset, place.lines, place.crc, place.last_bytes, place.last_crc, place.columns)


def place_from(values: Sequence[object]) -> LinePlace:
    offset, lines, crc, last_bytes, last_crc, columns = cast("Sequence[Any]", values)
    return LinePlace(offset, lines, crc, last_bytes, last_crc, None if columns is None else tuple(columns))


def pack_cursor(cursor: FileCursor) -> bytes:
    return pack_state(cursor.number, cursor.records, *place_values(cursor.place))


def unpack_cursor(data: bytes) -> FileCursor:
    number, records, *place = unpack_state(data, "place in files")
    return FileCursor(number, place_from(place), records)


def pack_parts(parts: Sequence[LinePart]) -> bytes:
    return pack_state([(os.fsencode(part.path), part.name, part.member, part.size) for part in parts])


def unpack_parts(data: bytes) -> tuple[LinePart, ...]:
    (parts,) = unpack_state(data, "names of files")
    return tuple(LinePart(os.fsdecode(path), *rest) for path, *rest in parts)


@dataclass(frozen=True, slots=True)
class ReplaySpeed:
    """`speed`: recorded seconds per second. No gap takes longer than `longest_gap_s`."""

    speed: float = 1.0
    longest_gap_s: float = 60.0

    def __post_init__(self) -> None:
        if not (self.speed > 0 and self.longest_gap_s >= 0):
            raise SettingError(f"speed must be above 0 and longest_gap_s at least 0, found {self}")

    def gap_s(self, before_ms: int | None, time_ms: int | None) -> float:
        if before_ms is None or time_ms is None:
            return 0.0
        return min(self.longest_gap_s, max(0, time_ms - before_ms) / 1000 / self.speed)

    def due(self, records: Iterator[Recorded]) -> Iterator[tuple[Recorded, float]]:
        due_s, before_ms = 0.0, None
        for record in records:
            due_s += self.gap_s(before_ms, record.time_ms)
            before_ms = record.time_ms if record.time_ms is not None else before_ms
            yield record, due_s


@dataclass(frozen=True, slots=True)
class Recorded:
    data: bytes
    time_ms: int | None
    after: FileCursor


def replay_source(env: StreamExecutionEnvironment, config: Files, pace: ReplaySpeed) -> DataStream:
    """In order, each at its recorded time after the first. Blocks: reads the files once. Raises
    `SettingError`."""
    if config.follow:
        raise SettingError("a file that is replayed has an end: follow and replay do not go together")
    if config.format.time is None:
        raise SettingError("a replay needs the field that holds the recorded time")
    reader = line_reader(config)
    parts = parts_of(config.path, reader)
    records, lasts_s = 0, 0.0
    for _, due_s in pace.due(records_of(parts, reader)):
        records, lasts_s = records + 1, due_s
    # A call emits a record or has waited for `WAIT_S`, so these are enough.
    count = records + math.ceil(lasts_s / WAIT_S) + 1
    name = f"replay:{config.path.name}"
    replay = ReplayRecords(parts, reader, pace)
    return (
        calls(env, count=count, name=f"calls of {name}").process(replay, BYTES).set_parallelism(1).name(name)
    )


def records_of(
    parts: Sequence[LinePart], reader: LineReader, cursor: FileCursor | None = None
) -> Iterator[Recorded]:
    """Blocks. Raises as `FilesReader`."""
    files = FilesReader(parts, reader)
    try:
        for after, encoded in files.records(cursor or FileCursor()):
            if encoded is not None:
                record: Event | DeadLetter = decode(encoded)
                yield Recorded(encoded, record.time_ms, after)
    finally:
        files.close()


class ReplayRecords(KeyedProcessFunction):
    def __init__(
        self,
        parts: Sequence[LinePart],
        reader: LineReader,
        pace: ReplaySpeed,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._parts = parts
        self._reader = reader
        self._pace = pace
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._due: Iterator[tuple[Recorded, float]] | None = None
        self._next: tuple[Recorded, float] | None = None

    def open(self, runtime_context: RuntimeContext) -> None:
        self._place = runtime_context.get_state(ValueStateDescriptor("place", STATE))
        self._first_parts = runtime_context.get_state(ValueStateDescriptor("parts", STATE))
        self._call = CallLimit(output_room(runtime_context), clock=self._clock)
        self._share = ReadShare(runtime_context, self._clock)
        self._context = runtime_context

    def close(self) -> None:
        self._due = self._next = None

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        if self._due is None and self._place.value() is None:
            ctx.timer_service().register_event_time_timer(END_OF_TIME_MS)
            self._first_parts.update(pack_parts(self._parts))
            self._place.update(pack_cursor(FileCursor()))
        yield from self._hand_on()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[bytes]:
        yield from self._hand_on()
        while self._next is not None:
            if is_cancelled():
                raise ForebayError("the job was cancelled before the replay's end")
            yield from self._hand_on()

    def _hand_on(self) -> Iterator[bytes]:
        if self._due is None:
            cursor = unpack_cursor(self._place.value())
            parts = unpack_parts(self._first_parts.value())
            self._starts = starts_of(parts)
            records = records_of(parts, self._reader, cursor)
            self._due = self._pace.due(records)
            self._next = next(self._due, None)
            self._start_s = self._clock.monotonic_s()
        handed: Recorded | None = None
        self._call.begin()
        while self._next is not None and self._is_due(self._next[1], may_wait=handed is None):
            handed = self._next[0]
            yield handed.data
            self._next = next(self._due, None)
            if self._call.reached():
                break
        if handed is not None:
            at = handed.after
            self._place.update(pack_cursor(at))
            self._share.report(self._starts[at.number] + at.place.offset, self._starts[-1])

    def _is_due(self, due_s: float, *, may_wait: bool) -> bool:
        wait_s = self._start_s + due_s - self._clock.monotonic_s()
        if wait_s > 0 and may_wait:
            self._sleep(min(wait_s, WAIT_S))
            return wait_s <= WAIT_S
        return wait_s <= 0
