"""Replay files at their recorded times, or faster by a factor."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ValueStateDescriptor

from forebay.clock import Clock, SystemClock
from forebay.codec import decode
from forebay.connectors.files.lines import LinePart
from forebay.connectors.files.reader import FileCursor, FilesReader, LineReader, parts_of, starts_of
from forebay.connectors.files.source import (
    Files,
    line_reader,
    pack_cursor,
    pack_parts,
    unpack_cursor,
    unpack_parts,
)
from forebay.connectors.python_source import WAIT_S, CallLimit, ReadShare, calls
from forebay.errors import ForebayError, SettingError
from forebay.flink.jvm_task import is_cancelled, output_room
from forebay.flink.types import BYTES, END_OF_TIME_MS, STATE
from forebay.records import DeadLetter, Event


@dataclass(frozen=True, slots=True)
class ReplaySpeed:
    """`speed`: recorded seconds per second. No gap takes longer than `longest_gap_s`."""

    speed: float = 1.0
    longest_gap_s: float = 60.0

    def __post_init__(self) -> None:
        if not (self.speed > 0 and self.longest_gap_s >= 0):
            raise SettingError(f"speed must be above 0 and longest_gap_s at least 0, found {self}")

    def gap_s(self, before_ms: int | None, time_ms: int | None) -> float:
        """0 if a time is missing or goes backwards."""
        if before_ms is None or time_ms is None:
            return 0.0
        return min(self.longest_gap_s, max(0, time_ms - before_ms) / 1000 / self.speed)

    def due(self, records: Iterator[Recorded]) -> Iterator[tuple[Recorded, float]]:
        """In seconds after the first."""
        due_s, before_ms = 0.0, None
        for record in records:
            due_s += self.gap_s(before_ms, record.time_ms)
            before_ms = record.time_ms if record.time_ms is not None else before_ms
            yield record, due_s


@dataclass(frozen=True, slots=True)
class Recorded:
    """`after`: the cursor behind the record."""

    data: bytes
    time_ms: int | None
    after: FileCursor


def replay_source(env: StreamExecutionEnvironment, config: Files, pace: ReplaySpeed) -> DataStream:
    """The encoded records of `config` in order, each at its recorded time.

    Times count from the first record after the start; delays from downstream are caught up. Files are read up
    to the sizes they had at the job's first start; later files are not read, even after a restore. Planning
    the job reads them once for their duration (blocks).

    Raises `SettingError` if the format has no time field, or with `follow`.
    """
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
    replay = Replay(parts, reader, pace)
    return (
        calls(env, count=count, name=f"calls of {name}").process(replay, BYTES).set_parallelism(1).name(name)
    )


def records_of(
    parts: Sequence[LinePart], reader: LineReader, cursor: FileCursor | None = None
) -> Iterator[Recorded]:
    """Blocks on the file system. Raises as `FilesReader`."""
    files = FilesReader(parts, reader)
    try:
        for after, encoded in files.records(cursor or FileCursor()):
            if encoded is not None:
                record: Event | DeadLetter = decode(encoded)
                yield Recorded(encoded, record.time_ms, after)
    finally:
        files.close()


class Replay(KeyedProcessFunction):
    """Emits the records that are due at each call. State holds the place in the files as they were at the
    first start.
    """

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
            self._place.update(pack_cursor(handed.after))
            self._share.report(
                self._starts[handed.after.number] + handed.after.place.offset, self._starts[-1]
            )

    def _is_due(self, due_s: float, *, may_wait: bool) -> bool:
        wait_s = self._start_s + due_s - self._clock.monotonic_s()
        if wait_s > 0 and may_wait:
            self._sleep(min(wait_s, WAIT_S))
            return wait_s <= WAIT_S
        return wait_s <= 0
