"""Files as sources and sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pyflink.common import Types
from pyflink.datastream import DataStream, StreamExecutionEnvironment

from forebay.api.objects import ObjectStream, check_stream, failing_as
from forebay.codec import decode
from forebay.connectors.event_time import EventTime
from forebay.connectors.files.reader import columns_at
from forebay.connectors.files.sink import JsonlFiles, jsonl_sink
from forebay.connectors.files.source import Files, ReplaySpeed, file_source, replay_source
from forebay.connectors.formats import MAX_RECORD_BYTES, Format, dead_letter_json, result_json
from forebay.errors import SettingError
from forebay.flink.event_time import with_event_time
from forebay.flink.types import check_uid_free
from forebay.json_numbers import dump_json
from forebay.records import DeadLetter, Event, Result


def read_jsonl(
    env: StreamExecutionEnvironment,
    path: str | Path,
    *,
    time: str | None = None,
    time_format: str = "iso8601",
    time_zone: str = "UTC",
    payload: str | None = None,
    out_of_orderness_s: float | None = None,
    follow: bool = False,
    replay: float | None = None,
    limit: int | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    encoding: str = "utf-8",
    name: str = "source",
) -> ObjectStream[Event]:
    """Events from a file, or from all files in a directory, with one JSON object per line.

    The place in the files is in Flink's state, so a restart resumes there. An event's position, `name@line`,
    is its id; `name` begins with the last name in `path`. A line that is not a JSON object becomes a dead
    letter of the operator that reads the stream, and the job continues. Compressed files (gzip, bzip2, xz,
    zstd, zip) are recognised by their content.

    Args:
        env: A PyFlink environment.
        path: A file or a directory.
        time: Field with the event's time; dots for nesting.
        time_format: `iso8601`, `unix_s`, `unix_ms`, `unix_us`, `unix_ns`, or a `strptime` pattern.
        time_zone: Time zone of times without one, such as `"Europe/Berlin"`.
        payload: Field of each object that holds the record; the rest of the object becomes the field
            `envelope`. None: the object is the record.
        out_of_orderness_s: Set Flink's timestamps, and watermarks this many seconds behind; None: no
            timestamps.
        follow: Read without end, including new or replaced files in the directory and added lines.
        replay: Emit events at the pace of their times: 1.0 as fast as they happened, 10.0 ten times as fast.
        limit: End after this many events.
        max_record_bytes: A longer line becomes a dead letter.
        encoding: Encoding of the files: `utf-8`, `utf-16`, `latin-1`, `cp1252`, …
        name: Name and `uid` of the source.

    Raises `SettingError` for a wrong argument.

    >>> env = fb.environment()
    >>> tickets = fb.read_jsonl(env, "examples/tickets.jsonl", limit=2)
    >>> with tickets.execute_and_collect() as events:
    ...     [event.fields["id"] for event in events]
    ['T-1001', 'T-1002']
    """
    form = Format("jsonl", _time(time, time_format, time_zone), max_record_bytes, payload=payload)
    files = Files(Path(path), form, follow=follow, limit=limit, encoding=encoding)
    return _read(env, files, out_of_orderness_s=out_of_orderness_s, replay=replay, name=name)


def read_text(
    env: StreamExecutionEnvironment,
    path: str | Path,
    *,
    follow: bool = False,
    limit: int | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    encoding: str = "utf-8",
    name: str = "source",
) -> ObjectStream[Event]:
    """Events from the lines of a file, or of all files in a directory, with one field, `text`.

    Arguments, guarantees and errors are those of `read_jsonl`.

    >>> env = fb.environment()
    >>> with fb.read_text(env, "examples/tickets.jsonl", limit=1).execute_and_collect() as events:
    ...     [event.fields["text"][:15] for event in events]
    ['{"id": "T-1001"']
    """
    form = Format("text", max_record_bytes=max_record_bytes)
    files = Files(Path(path), form, follow=follow, limit=limit, encoding=encoding)
    return _read(env, files, out_of_orderness_s=None, replay=None, name=name)


def read_csv(
    env: StreamExecutionEnvironment,
    path: str | Path,
    *,
    columns: tuple[str, ...] = (),
    delimiter: str = ",",
    time: str | None = None,
    time_format: str = "iso8601",
    time_zone: str = "UTC",
    out_of_orderness_s: float | None = None,
    follow: bool = False,
    replay: float | None = None,
    limit: int | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    encoding: str = "utf-8",
    name: str = "source",
) -> ObjectStream[Event]:
    """Events from the rows of a CSV file, or of all files in a directory. All fields are texts.

    Args:
        columns: Names of the columns; empty: the first row of each file has them.
        delimiter: Separator of cells.

    Other arguments, guarantees and errors are those of `read_jsonl`.

    >>> _ = Path("reviews.csv").write_text("id,text\\nR-1,Too noisy\\n")
    >>> env = fb.environment()
    >>> with fb.read_csv(env, "reviews.csv").execute_and_collect() as events:
    ...     [dict(event.fields) for event in events]
    [{'id': 'R-1', 'text': 'Too noisy'}]
    """
    form = Format("csv", _time(time, time_format, time_zone), max_record_bytes, tuple(columns), delimiter)
    files = Files(Path(path), form, follow=follow, limit=limit, encoding=encoding)
    events = _read(env, files, out_of_orderness_s=out_of_orderness_s, replay=replay, name=name)
    return ObjectStream(events.encoded, Event, fields=columns_at(files) or None)


def write_jsonl(stream: DataStream, path: str | Path, *, name: str | None = None) -> None:
    """Write each object of `stream` as a line of JSON, exactly once, into files in a directory.

    A file appears as `part-*.jsonl` with the checkpoint that covers it, or without checkpoints when the job
    ends, and never changes afterwards. Lines of one subtask stay in order.

    Args:
        stream: Results, dead letters, or JSON values and pydantic models from a function of yours.
        path: The directory.
        name: `uid` of the sink, by which a restart finds its state; None: derived from the path.

    Raises `SettingError` if `stream` is not a stream. An object that is not a JSON value fails the job; after
    two such failures in a row, it ends with `FunctionFailed`.

    >>> env = fb.environment()
    >>> fb.write_jsonl(env.from_collection([{"word": "router"}]), "out")
    >>> _ = env.execute("words")
    >>> [part.read_text() for part in Path("out").glob("part-*.jsonl")]
    ['{"word":"router"}\\n']
    """
    check_stream(stream, "write_jsonl")
    uid = name or f"write {path}"
    check_uid_free(stream.get_execution_environment(), uid, "write_jsonl")
    encoded = isinstance(stream, ObjectStream)
    source: Any = stream.encoded if encoded else stream
    line = JsonLine(f"write_jsonl '{path}'", decode if encoded else None)
    lines = source.map(line, Types.STRING())
    # At the stream's own parallelism, to keep the order within a subtask.
    lines.name("JSON lines").set_parallelism(source._j_data_stream.getParallelism())
    jsonl_sink(lines, JsonlFiles(Path(path)), uid=uid)


@dataclass(frozen=True)
class JsonLine:
    """`read` decodes the element first. Raises `FunctionFailed`, naming the sink, if it is not a JSON
    value."""

    where: str
    read: Callable[[bytes], Any] | None = None

    def __call__(self, element: Any) -> str:
        item = element if self.read is None else self.read(bytes(element))
        with failing_as(self.where, "making JSON", item):
            return json_line(item)


def json_line(value: Any) -> str:
    """Raises `TypeError` if `value` is not a JSON value."""
    if isinstance(value, Result):
        if isinstance(value.answer, BaseModel):
            value = replace(value, answer=_other(value.answer))
        return result_json(value)
    if isinstance(value, DeadLetter):
        return dead_letter_json(value)
    return dump_json(value, _other).decode("utf-8")


def _other(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _time(field: str | None, form: str, zone: str) -> EventTime | None:
    return None if field is None else EventTime(field, form, zone)


def _read(
    env: StreamExecutionEnvironment,
    files: Files,
    *,
    out_of_orderness_s: float | None,
    replay: float | None,
    name: str,
) -> ObjectStream[Event]:
    form = files.format
    if replay is None:
        stream = file_source(env, files)
    elif form.time is None:
        raise SettingError("replay needs the time of each event: name its field with time=")
    else:
        stream = replay_source(env, files, ReplaySpeed(replay))
    if out_of_orderness_s is not None and form.time is None:
        raise SettingError("out_of_orderness_s needs the time of each event: name its field with time=")
    check_uid_free(env, name, "the source")
    stream.uid(name)
    if out_of_orderness_s is not None:
        stream = timed(stream, out_of_orderness_s)
    return ObjectStream(stream, Event, fields=("text",) if form.kind == "text" else None)


def timed(stream: DataStream, out_of_orderness_s: float) -> DataStream:
    if not out_of_orderness_s >= 0:
        raise SettingError(f"out_of_orderness_s: expected 0 or more seconds, found {out_of_orderness_s}")
    return with_event_time(stream, out_of_orderness_ms=round(out_of_orderness_s * 1000))
