"""Bytes to events or dead letters, results and dead letters to JSON lines, and dead letters back."""

from __future__ import annotations

import base64
import binascii
import csv
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

import orjson

from forebay.codec import decode, encode
from forebay.connectors.event_time import EventTime
from forebay.engine.prices import from_pico
from forebay.errors import MalformedDeadLetter, MalformedRecord, NoRecord, RecordError, Tombstone
from forebay.json_numbers import TOO_DEEP, NumberRefused, deeper_than, dump_json, read_json
from forebay.records import JSON, DeadLetter, Event, Result

if TYPE_CHECKING:
    from pyflink.datastream import DataStream


MAX_RECORD_BYTES = 1 << 20
MAX_DEPTH = 200
NESTED = f"the record is nested deeper than {MAX_DEPTH} levels"

BOM = b"\xef\xbb\xbf"

LINE_FEEDS = "if all lines end with one, as in old files of Macs, turn them into line feeds: tr '\\r' '\\n'"

Kind = Literal["jsonl", "text", "csv"]


@dataclass(frozen=True, slots=True)
class Format:
    """A record over `max_record_bytes`, or without a valid `time` if set, becomes a dead letter.

    `payload`: the field that holds the record. `pattern`: its named groups become fields.
    """

    kind: Kind = "jsonl"
    time: EventTime | None = None
    max_record_bytes: int = MAX_RECORD_BYTES
    columns: tuple[str, ...] = ()
    delimiter: str = ","
    payload: str | None = None
    pattern: str | None = None

    def read(
        self,
        raw: bytes,
        position: str | None = None,
        parse: Callable[[bytes], Mapping[str, JSON]] | None = None,
    ) -> Event | DeadLetter:
        """An unreadable record becomes a dead letter. `parse` returns the fields, or raises a
        `RecordError`."""
        try:
            if len(raw) > self.max_record_bytes:
                raise MalformedRecord(
                    f"the record has {len(raw)} bytes, the limit is {self.max_record_bytes}"
                )
            fields = self._fields(raw.removeprefix(BOM)) if parse is None else parse(raw)
            if self.payload is not None:
                fields = record_in(fields, self.payload, json_object)
            time_ms = self.time.of(fields) if self.time is not None else None
            event = Event(raw=raw, fields=fields, time_ms=time_ms, position=position)
            encode(event)
        except RecordError as error:
            return DeadLetter(raw=raw, cause=error.cause, detail=str(error), position=position)
        return event

    def _fields(self, data: bytes) -> Mapping[str, JSON]:
        if self.kind == "jsonl":
            return json_object(data)
        text = _text(data)
        return self._line(text) if self.kind == "text" else self._row(text)

    def _line(self, text: str) -> Mapping[str, JSON]:
        if self.pattern is None:
            return {"text": text}
        groups = _groups(text, self.pattern)
        if groups is None:
            raise MalformedRecord("the line does not match line_pattern")
        return {"text": text, **groups}

    def _row(self, text: str) -> Mapping[str, JSON]:
        rows = csv_rows(text, self.delimiter)
        row = rows[0] if len(rows) == 1 else []
        if len(row) != len(self.columns):
            raise MalformedRecord(f"the row has {len(row)} columns, the header has {len(self.columns)}")
        return dict(zip(self.columns, row, strict=True))


def csv_rows(text: str, delimiter: str) -> list[list[str]]:
    """Raises `MalformedRecord`."""
    # The limit of the process, 128 KiB at first; a field may be as long as its record.
    csv.field_size_limit(sys.maxsize)
    try:
        return list(csv.reader([text], delimiter=delimiter, strict=True))
    except csv.Error as error:
        problem = str(error)
        if "new-line character" in problem:
            # The module advises how to open the file in Python.
            problem = f"it has a carriage return outside of quotes; {LINE_FEEDS}"
        raise MalformedRecord(f"not a CSV row: {problem}") from None


def _groups(text: str, pattern: str) -> dict[str, str] | None:
    # RE2 takes time in proportion to the text; Python's own `re` can take hours for a line.
    import pyarrow
    from pyarrow import compute

    found: dict[str, str] | None = compute.extract_regex(
        pyarrow.scalar(text), pattern=f"^(?:{pattern})"
    ).as_py()
    return found


def groups_of(pattern: str) -> tuple[str, ...]:
    """Raises `ValueError`, also if a group has no name."""
    import pyarrow
    from pyarrow import compute

    form = compute.extract_regex(pyarrow.array([], pyarrow.string()), pattern=f"^(?:{pattern})").type
    names = tuple(field.name for field in form)
    if not names:
        raise ValueError("it has no group with a name, such as (?P<level>\\w+)")
    return names


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedRecord(
            f"not UTF-8: byte {error.start + 1} is 0x{data[error.start]:02x} ({error.reason})"
        ) from None


def json_object(data: bytes) -> Mapping[str, JSON]:
    """Raises `MalformedRecord`, also if it is nested too deeply."""
    try:
        value = read_json(data)
    except NumberRefused as error:
        raise MalformedRecord(str(error)) from None
    except orjson.JSONDecodeError as error:
        _text(data)
        raise MalformedRecord(NESTED if TOO_DEEP in str(error) else f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedRecord(f"a JSON object is needed, found {_json_type(value)}")
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and deeper_than(value, MAX_DEPTH):
        raise MalformedRecord(NESTED)
    return value


OWN = "own"


def with_added(fields: Mapping[str, JSON], added: Mapping[str, Mapping[str, JSON]]) -> Mapping[str, JSON]:
    """Fields of the source win, so a record cannot fake its origin; its own field is `own`."""
    made = {name: {**about, OWN: fields[name]} if name in fields else about for name, about in added.items()}
    return {**fields, **made}


def _json_type(value: JSON) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


LEFT_OUT = {"record_key", "headers", "record_ms", "timeline", "reasoning", "raw", "cost_pico"}
WRITTEN = tuple(field.name for field in fields(Result) if field.name not in LEFT_OUT)
MAX_TIME_MS = 2**62
"""Above nanoseconds written as milliseconds, below Flink's end of time."""
NEEDED = ("input", "record_key", "headers", "position")


def result_json(result: Result) -> str:
    """Raises `MalformedRecord` if a field is not a JSON value."""
    try:
        line = {name: getattr(result, name) for name in WRITTEN}
        if result.cost_pico is not None:
            line["cost"] = from_pico(result.cost_pico)
        if result.timeline is not None:
            line["timeline"] = result.timeline
        if result.reasoning is not None:
            line["reasoning"] = result.reasoning.encode("utf-8", "replace").decode()
        return dump_json(line).decode("utf-8")
    except TypeError as error:
        raise MalformedRecord(f"the result {result.id} cannot be written as JSON: {error}") from None


def dead_letter_json(
    letter: DeadLetter, *, input_bytes: int | None = None, cut_bytes: Mapping[str, int] | None = None
) -> str:
    """`input_bytes` keeps only the first bytes of the record. `cut_bytes`: what the caller has cut, by
    part."""
    line: dict[str, object] = {
        "cause": letter.cause,
        "detail": letter.detail.encode("utf-8", "replace").decode("utf-8"),
        "attempts": letter.attempts,
        "id": letter.id,
        "key": letter.key,
        "time_ms": letter.time_ms,
        "position": letter.position,
    }
    if letter.cost_pico is not None:
        line["cost"] = from_pico(letter.cost_pico)
    if letter.record_ms is not None or letter.record_key is not None or letter.headers:
        line["record"] = {
            "time_ms": letter.record_ms,
            "key": _bytes_json(letter.record_key),
            "headers": {name: _bytes_json(value) for name, value in letter.headers.items()},
        }
    if letter.cause == Tombstone.cause and not letter.raw:
        given = {"cut_bytes": dict(cut_bytes)} if cut_bytes else {}
        return dump_json({**line, "input": None, **given}).decode("utf-8")
    kept = letter.raw if input_bytes is None else letter.raw[:input_bytes]
    try:
        letter.raw.decode("utf-8")
    except UnicodeDecodeError:
        line["input_base64"] = base64.b64encode(kept).decode("ascii")
    else:
        line["input"] = text = kept.decode("utf-8", "ignore")
        kept = text.encode() if len(kept) < len(letter.raw) else kept
    cut = {"input": letter.cut_bytes + len(letter.raw) - len(kept), **(cut_bytes or {})}
    if any(cut.values()):
        line["cut_bytes"] = {name: size for name, size in cut.items() if size}
    return dump_json(line).decode("utf-8")


def parse_dead_letter(line: bytes | str) -> DeadLetter:
    """Raises `MalformedDeadLetter`, also if the input, key, headers or position were cut."""
    try:
        value = orjson.loads(line)
        position = _text_or_none(value, "position")
        missing = value.get("cut_bytes", {})
        for name in NEEDED:
            if missing.get(name):
                raise MalformedDeadLetter(
                    f"the {name} of this dead letter was cut by {missing[name]} bytes, because its topic "
                    f"or its source keeps no more; read the record from its source, at the position "
                    f"{(position or '')[:200]!r}"
                )
        record = value.get("record") or {}
        if "input" in value:
            raw = b"" if _is_tombstone(value) else value["input"].encode("utf-8")
        else:
            raw = base64.b64decode(value["input_base64"], validate=True)
        return DeadLetter(
            raw=raw,
            cause=str(value["cause"]),
            detail=str(value["detail"]),
            attempts=int(value.get("attempts", 0)),
            id=_text_or_none(value, "id"),
            key=_text_or_none(value, "key"),
            time_ms=_time_ms(value.get("time_ms")),
            position=position,
            record_key=_json_bytes(record.get("key")),
            headers={name: _json_bytes(data) for name, data in record.get("headers", {}).items()},
            record_ms=_time_ms(record.get("time_ms")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise MalformedDeadLetter(f"not a dead letter: {type(error).__name__}: {error}") from None


def _is_tombstone(value: Mapping[str, JSON]) -> bool:
    return value["input"] is None and value["cause"] == Tombstone.cause


def _text_or_none(value: Mapping[str, JSON], name: str) -> str | None:
    found = value.get(name)
    if found is None or isinstance(found, str):
        return found
    raise ValueError(f"{name} is {_json_type(found)}; expected a text or null")


def _bytes_json(data: bytes | None) -> JSON:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _json_bytes(value: JSON) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"], validate=True)
    return None if value is None else str(value).encode("utf-8")


def _time_ms(value: object) -> int | None:
    if value is None or (type(value) is int and abs(value) <= MAX_TIME_MS):
        return value
    raise ValueError("time_ms is not a time")


def result_lines(results: DataStream) -> DataStream:
    """Keeps the stream's parallelism, and so the order within a subtask."""
    from pyflink.common import Types

    lines = results.map(lambda data: result_json(decode(data)), Types.STRING()).name("results as JSON")
    return lines.set_parallelism(results._j_data_stream.getParallelism())


def dead_letter_lines(letters: DataStream) -> DataStream:
    from pyflink.common import Types

    lines = letters.map(lambda data: dead_letter_json(decode(data)), Types.STRING())
    return lines.name("dead letters as JSON").set_parallelism(letters._j_data_stream.getParallelism())


ENVELOPE = "envelope"


def record_in(
    value: Mapping[str, JSON], path: str, parse: Callable[[bytes], Mapping[str, JSON]]
) -> Mapping[str, JSON]:
    """The record's fields at `path`, plus the rest of its object as `envelope`.

    Raises `NoRecord` if the field is missing or null, or `MalformedRecord`.
    """
    *outer, last = path.split(".")
    holder: JSON = value
    for name in outer:
        holder = holder.get(name) if isinstance(holder, Mapping) else None
    if not isinstance(holder, Mapping) or last not in holder:
        # This imports Jinja, which `forebay --help` should not wait for.
        from forebay.engine.prompt import names_of

        raise NoRecord(f"payload: the field {path!r} is missing; the value has {names_of(value)}")
    inner = holder[last]
    if inner is None:
        deletion = ": it is a deletion, its `op` is 'd'" if holder.get("op") == "d" else ""
        raise NoRecord(f"payload: the field {path!r} is null{deletion}")
    if isinstance(inner, str):
        try:
            inner = parse(inner.encode("utf-8", "surrogatepass"))
        except MalformedRecord as error:
            raise MalformedRecord(f"payload: the text in the field {path!r}: {error}") from None
    if not isinstance(inner, Mapping):
        raise MalformedRecord(
            f"payload: the field {path!r} is {type(inner).__name__}; expected an object, or text with one"
        )
    rest = {name: part for name, part in holder.items() if name != last}
    return inner if ENVELOPE in inner else {**inner, ENVELOPE: rest}
