"""Files as a stream: JSON lines, text lines, CSV, and dead letters that are fed in again."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import cast

from pyflink.common import Duration, WatermarkStrategy
from pyflink.datastream import DataStream, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.state import ValueStateDescriptor

from forebay.codec import decode, pack_state, unpack_state
from forebay.connectors.files.lines import (
    UNREADABLE,
    LineReader,
    Part,
    Pieces,
    Place,
    Progress,
    data_files,
    longest_line,
    open_file,
    parts_of,
    piece_bytes,
    quote_open,
)
from forebay.connectors.formats import BOM, Format
from forebay.connectors.python_source import calls, on_one_key
from forebay.errors import SettingError
from forebay.flink.types import BYTES, END_OF_TIME_MS, STATE
from forebay.records import DeadLetter, Event

LATIN = "ISO-8859-1"
"""Maps each byte to one character and back: what a line holds survives, UTF-8 or not."""

MAX_HEADER_LINES = 100
FIRST_BYTES = 1 << 18
STATE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Files:
    """One file, or every file under a directory (names that start with `.` or `_` are left out), by name.

    Files are read as far as they went when the job first started. With `follow` the source never ends and
    takes up files that appear, in no order of their own; a file must be complete when it appears (write it
    elsewhere and move it in). `letters`: the lines are dead letters as the sink writes them; the record in
    each is read as `format` says. Compressed files (.gz, .bz2, .xz) are read.

    Lines end with LF or CRLF; a record's `raw` is without its line's end, and inside a CSV row of several
    lines the ends are LF. Of a line longer than 16 MiB and than the format's `max_record_bytes`, the bytes
    up to that and one more are kept, and refused. Where Flink itself reads, with `follow`, CR ends a line as
    well, and a line is held in its heap whole.
    """

    path: Path
    format: Format = field(default_factory=Format)
    follow: bool = False
    every_s: float = 1.0
    letters: bool = False
    limit: int | None = None


def file_source(env: StreamExecutionEnvironment, config: Files) -> DataStream:
    """Each record of `config` as the bytes of an `Event`, or of a `DeadLetter` where it cannot be read.

    Read in order, by one subtask; positions are `name@line`, where the lines of a directory are counted
    through in the order read. Where the job is planned, sizes are looked up (blocking: with a limit, what
    lies before it is read; compressed files are unpacked). Raises `SettingError` where nothing can be read
    or a header is needed and missing.
    """
    reader = line_reader(config)
    name = f"files {config.path.name}"
    if config.follow:
        every = Duration.of_millis(round(config.every_s * 1000))
        source = FileSource.for_record_stream_format(
            StreamFormat.text_line_format(LATIN), config.path.absolute().as_uri()
        )
        found = source.monitor_continuously(every).build()
        stream = env.from_source(found, WatermarkStrategy.no_watermarks(), name)
        given = on_one_key(stream.set_parallelism(1))
        read: KeyedProcessFunction = ReadLines(reader)
    else:
        parts = parts_of(config.path, reader)
        step = piece_bytes(parts)
        given = calls(env, count=max(1, math.ceil(sum(size for _, size in parts) / step)), name=name)
        read = ReadPieces(parts, reader, step)
    return given.process(read, BYTES).set_parallelism(1).name(f"read {config.format.kind}")


def line_reader(config: Files) -> LineReader:
    """What `config` makes of each line; reads the header where the format needs one (blocking)."""
    if not config.path.exists():
        raise SettingError(f"source path {config.path} does not exist")
    if config.follow and not config.path.is_dir():
        raise SettingError(
            f"follow watches a directory for new files, and {config.path} is a file: lines added to it would "
            "not be read; name a directory and move complete files into it"
        )
    if config.follow and config.limit is not None:
        raise SettingError(
            "limit ends a source, and follow keeps it open for new files: leave one of them out"
        )
    if config.limit is not None and config.limit < 1:
        raise SettingError(f"limit must be at least 1, found {config.limit}")
    form, header = config.format, False
    if form.kind == "csv" and not form.columns:
        if config.letters:
            raise SettingError("dead letters of CSV rows hold no header: name the columns")
        form, header = replace(form, columns=read_header(config.path, form)), True
    return LineReader(
        name=config.path.name, format=form, header=header, letters=config.letters, limit=config.limit
    )


def first_records(config: Files) -> Iterator[Event | DeadLetter]:
    """The records in the first 256 KiB of what `config` reads, in order; blocks. Ends where a file cannot be
    read. Raises `SettingError` as `line_reader`."""
    reader, at, left = line_reader(config), Progress(), FIRST_BYTES
    for path in data_files(config.path):
        try:
            with open_file(str(path)) as file:
                lines = list(BytesIO(file.read(left)))
        except UNREADABLE:
            return
        left -= sum(map(len, lines))
        if not left and lines:
            # It may go on behind what was read.
            lines.pop()
        for line in lines:
            at, record = reader.step(at, line.removesuffix(b"\n").removesuffix(b"\r"))
            if record is not None:
                yield cast(Event | DeadLetter, decode(record))
        if not left:
            return


def read_header(path: Path, form: Format) -> tuple[str, ...]:
    """The first row of the first file (by name) under `path`."""
    first = next(data_files(path), None)
    if first is None:
        raise SettingError(f"{path} holds no file to take the CSV header from: name the columns")
    try:
        with open_file(str(first)) as file:
            text = b""
            for _ in range(MAX_HEADER_LINES):
                line = file.readline(form.max_record_bytes)
                inside = bool(text)
                text += line
                if not line or not quote_open(line, form.delimiter, inside=inside):
                    break
        row = text.removeprefix(BOM).decode("utf-8").rstrip("\r\n")
        rows = list(csv.reader([row], delimiter=form.delimiter, strict=True))
    except (*UNREADABLE, UnicodeDecodeError, csv.Error) as error:
        raise SettingError(f"the CSV header of {first} cannot be read: {error}") from None
    if not text:
        raise SettingError(f"{first} is empty: it has no line with the names of its columns")
    columns = tuple(rows[0]) if rows else ()
    if not columns or len(set(columns)) != len(columns):
        raise SettingError(f"the CSV header of {first} needs distinct column names, found {list(columns)}")
    return columns


class ReadPieces(KeyedProcessFunction):
    """Numbers of pieces to the encoded records that begin in them; the place in the files is state."""

    def __init__(self, parts: Sequence[Part], reader: LineReader, step: int) -> None:
        self._parts = parts
        self._reader = reader
        self._step = step
        self._pieces: Pieces | None = None
        self._at: Place = (0, 0)
        self._progress = Progress()

    def open(self, runtime_context: RuntimeContext) -> None:
        self._place = runtime_context.get_state(ValueStateDescriptor("place", STATE))
        # Files that came since, or grew, would move the pieces that are still to come.
        self._first_parts = runtime_context.get_state(ValueStateDescriptor("parts", STATE))
        self._first_step = runtime_context.get_state(ValueStateDescriptor("step", STATE))

    def close(self) -> None:
        if self._pieces is not None:
            self._pieces.close()

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        if self._pieces is None:
            self._begin(ctx)
        assert self._pieces is not None
        before = self._at
        for after, line in self._pieces.lines(before, (value + 1) * self._step):
            self._at = after
            self._progress, record = self._reader.step(self._progress, line)
            if record is not None:
                yield record
        if self._at != before:
            self._place.update(pack_place(self._at, self._progress))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[bytes]:
        place, before = unpack_place(self._place.value())
        at, record = self._reader.end(before)
        self._place.update(pack_place(place, at))
        if record is not None:
            yield record

    def _begin(self, ctx: KeyedProcessFunction.Context) -> None:
        """The first call of a run."""
        if self._place.value() is None:
            ctx.timer_service().register_event_time_timer(END_OF_TIME_MS)
            self._first_parts.update(pack_parts(self._parts))
            self._first_step.update(pack_state(STATE_FORMAT, self._step))
            self._place.update(pack_place((0, 0), Progress()))
        self._at, self._progress = unpack_place(self._place.value())
        self._pieces = Pieces(unpack_parts(self._first_parts.value()), longest_line(self._reader))
        (self._step,) = unpack_state(self._first_step.value(), STATE_FORMAT, "the size of pieces")


class ReadLines(KeyedProcessFunction):
    """Lines (as Latin-1 text) to encoded records; progress is state, so positions survive a restore."""

    def __init__(self, reader: LineReader) -> None:
        self._reader = reader
        self._progress: Progress | None = None

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("progress", STATE))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[bytes]:
        before = self._progress or self._begin(ctx)
        self._progress, record = self._reader.step(before, value.encode("latin-1"))
        self._state.update(pack_place((0, 0), self._progress))
        if record is not None:
            yield record

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[bytes]:
        self._progress, record = self._reader.end(self._progress or self._begin(ctx))
        self._state.update(pack_place((0, 0), self._progress))
        if record is not None:
            yield record

    def _begin(self, ctx: KeyedProcessFunction.Context) -> Progress:
        """The first call of a run."""
        found = self._state.value()
        if found is None:
            ctx.timer_service().register_event_time_timer(END_OF_TIME_MS)
            return Progress()
        return unpack_place(found)[1]


def pack_place(place: Place, at: Progress) -> bytes:
    """A place in files, and the progress there, as state keeps them."""
    return pack_state(STATE_FORMAT, *place, at.lines, at.records, at.partial, at.partial_lines)


def unpack_place(data: bytes) -> tuple[Place, Progress]:
    """What `pack_place` was given. Raises `ForebayError` like `unpack_state`."""
    number, offset, *at = unpack_state(data, STATE_FORMAT, "a place in files")
    return (number, offset), Progress(*at)


def pack_parts(parts: Sequence[Part]) -> bytes:
    """The files that a source reads, as state keeps them; their names need not be UTF-8."""
    return pack_state(STATE_FORMAT, [(os.fsencode(path), size) for path, size in parts])


def unpack_parts(data: bytes) -> tuple[Part, ...]:
    """What `pack_parts` was given. Raises `ForebayError` like `unpack_state`."""
    (parts,) = unpack_state(data, STATE_FORMAT, "the names of files")
    return tuple((os.fsdecode(path), size) for path, size in parts)
